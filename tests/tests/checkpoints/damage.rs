//! Files that are not what was written are refused, whatever is in them.

use std::fs;

use checkpoints::Resume;
use tempfile::TempDir;

use super::run::{Settings, assert_same, file, lenet, names};
use super::watched::{Cut, Event, Watched, cut};
use crate::prelude::*;

/// A folder with the checkpoint of LeNet after step 2, and its bytes.
pub(crate) fn stored() -> (TempDir, Settings, Vec<u8>) {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder);
    settings.train(&cut(lenet(), Cut(2, Event::Interrupt))).unwrap();
    let bytes = fs::read(settings.folder().join(file(2))).unwrap();
    (folder, settings.resume(Resume::Newest), bytes)
}

/// That these bytes in place of a checkpoint are refused as damaged.
#[track_caller]
fn assert_damaged(settings: &Settings, model: &impl Model, bytes: &[u8], told: &str) {
    let path = settings.folder().join(file(2));
    fs::write(&path, bytes).unwrap();
    let error = settings.train(model).unwrap_err().to_string();
    let begin = format!("checkpoint {} is damaged: ", path.display());
    assert!(error.starts_with(&begin), "{told}: {error}");
    assert!(
        error.ends_with("; --resume latest-valid takes the newest checkpoint that can be used")
    );
}

/// `checkpoints` tests every length and every bit of a small file.
#[test]
fn a_file_with_a_fault_is_refused_and_nothing_is_trained() {
    let (_folder, settings, bytes) = stored();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let model = cut(lenet(), Cut::NEVER);
    let lengths = (0..20)
        .chain((20..bytes.len()).step_by(1009))
        .chain(header - 2..header + 3)
        .chain(bytes.len() - 9..bytes.len());
    for length in lengths {
        assert_damaged(&settings, &model, &bytes[..length], &format!("{length} bytes"));
    }
    assert_damaged(&settings, &model, &[&bytes[..], b" "].concat(), "a byte more");
    assert_damaged(&settings, &model, &vec![0; bytes.len()], "zeros");
    let hole = [&bytes[..header], &vec![0; bytes.len() - header]].concat();
    assert_damaged(&settings, &model, &hole, "a header without what follows");
    let bits = (0..64).chain((64..8 * header).step_by(37));
    let bits = bits.chain((8 * header..8 * bytes.len()).step_by(9973));
    for bit in bits.chain(8 * bytes.len() - 8..8 * bytes.len()) {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_damaged(&settings, &model, &bytes, &format!("bit {bit}"));
    }
    assert_eq!(model.steps.get(), 0);
    // The bytes themselves are fine.
    fs::write(settings.folder().join(file(2)), &bytes).unwrap();
    settings.train(&model).unwrap();
    assert_eq!(model.steps.get(), 4);
}

#[test]
fn foreign_files_are_refused() {
    let (_folder, settings, _) = stored();
    let with_header = |length: u64, text: &[u8]| [&length.to_le_bytes()[..], text].concat();
    let json = |text: &str| with_header(text.len() as u64, text.as_bytes());
    let other = safetensors::serialize(
        [("fc1.weight", Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap())],
        None,
    );
    let giant = r#"{"a":{"dtype":"F32","shape":[4000000000,4000000000],"data_offsets":[0,16]}}"#;
    let long = r#"{"a":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}"#;
    let foreign = [
        ("text", b"Dear reader, this is no checkpoint.".to_vec()),
        ("another safetensors file", other.unwrap()),
        ("an endless header", with_header(u64::MAX, b"{}")),
        ("a header of gigabytes", with_header(1 << 33, b"{}")),
        ("a header as long as the file", with_header(10, b"{}")),
        ("no tensors", json("{}")),
        ("no JSON", json("}{")),
        ("no text", json("\u{0}")),
        ("a shape that overflows", json(giant)),
        ("a terabyte", json(long)),
        ("deep JSON", json(&"[".repeat(1_000_000))),
    ];
    for (told, bytes) in foreign {
        assert_damaged(&settings, &lenet(), &bytes, told);
    }
    let path = settings.folder().join(file(2));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = settings.train(&lenet()).unwrap_err().to_string();
    assert!(error.contains("is damaged: it is no file"), "{error}");
}

/// The run keeps one checkpoint, and the update of step 4 makes weights infinite.
#[test]
fn a_state_that_is_not_finite_is_not_written_and_the_last_good_one_stays() {
    let away = Cut(4, Event::RunAway);
    let undisturbed = Settings::new().train(&lenet()).unwrap();
    for ranks in [1, 2] {
        let folder = TempDir::new().unwrap();
        let mut settings = Settings::keeping(&folder).every(2);
        settings.checkpoints.as_mut().unwrap().keep = 1;
        let error = if ranks == 1 {
            settings.train(&cut(lenet(), away)).unwrap_err().to_string()
        } else {
            // Rank 0, which writes, has finite weights.
            let network = lenet();
            let plan = DevicePlan::slices(ranks).unwrap();
            let outcomes = run_ranks(&plan, WAIT, |rank| {
                let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
                let cut = if rank.rank() == 0 { Cut::NEVER } else { away };
                settings.train(&Watched::new(model, |step| cut.at(step)))
            });
            outcomes.unwrap_err().to_string()
        };
        let [refused, last] = [4, 2].map(|step| settings.folder().join(file(step)));
        let expected = format!(
            "{} is not written, because W1 is not finite, most likely because the learning rate is too large; \
             the last checkpoint stays: {}",
            refused.display(),
            last.display()
        );
        assert!(error.contains(&expected), "{ranks}: {error}");
        assert_eq!(names(settings.folder()), ["lock".to_owned(), file(2)], "{ranks}");
        let rest = settings.resume(Resume::LatestValid).train(&lenet()).unwrap();
        if ranks == 1 {
            assert_same(&rest, &undisturbed, "after the last good one");
        }
    }
}
