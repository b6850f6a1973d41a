//! `cargo course doctor` reports the truth about a bare machine, and about a machine with GPUs, libraries and images.

use crate::*;

fn doctor() -> Command {
    let mut command = tool(&["doctor"]);
    command.env("COURSE_DATA_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-data"));
    for variable in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "LD_LIBRARY_PATH", "LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    command
}

#[test]
fn a_bare_machine_runs_the_chapters_on_its_processor() {
    let told = all([
        "✓ processor",
        "– NVIDIA GPUs    not found (nvidia-smi is not on the PATH)",
        "– MPI            not found (mpirun is not on the PATH)",
        "All chapters run on this machine's CPU",
    ]);
    let bare = doctor().env("PATH", "/nowhere").assert().success();
    bare.stdout(told.and(contains("-- --device cuda").not()));
}

#[test]
fn lines_fit_into_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    program(
        folder.path(),
        "nvidia-smi",
        "echo 'Some GPU, 16 GiB, 999.1'; echo 'Another, 8 GiB, 1'",
    );
    program(folder.path(), "nvcc", "echo nvcc; echo 'Cuda compilation tools, release 13.0, V13.0'");
    for path in [Path::new("/nowhere"), folder.path()] {
        for columns in [None, Some(60), Some(80), Some(200)] {
            let mut doctor = doctor();
            doctor.env("PATH", path).env_remove("COLUMNS");
            columns.map(|columns: usize| doctor.env("COLUMNS", columns.to_string()));
            let output = doctor.assert().success().get_output().stdout.clone();
            let output = String::from_utf8(output).unwrap();
            let most = columns.unwrap_or(80).min(80);
            // A path is one word, and stays whole.
            let is_wide = |line: &&str| line.chars().count() > most && !line.contains("target/");
            assert_eq!(output.lines().find(is_wide), None, "{columns:?}");
        }
    }
}

#[test]
fn images_are_counted_and_a_malformed_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let header = [0x803u32, 2, 28, 28].map(u32::to_be_bytes).concat();
    let images = [header, vec![7; 2 * 784]].concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 3, 9];
    for split in ["train", "t10k"] {
        let file = |name: &str| folder.path().join(format!("{split}-{name}"));
        fs::write(file("images-idx3-ubyte"), &images).unwrap();
        fs::write(file("labels-idx1-ubyte"), labels).unwrap();
    }
    let whole = doctor().env("COURSE_DATA_DIR", folder.path()).assert().success();
    whole.stdout(contains(": 2 training and 2 test images"));
    // An unpacked file may have the name of a packed one. A run uses it, too.
    let [path, named_gz] =
        ["", ".gz"].map(|end| folder.path().join(format!("t10k-labels-idx1-ubyte{end}")));
    fs::rename(&path, &named_gz).unwrap();
    let whole = doctor().env("COURSE_DATA_DIR", folder.path()).assert().success();
    whole.stdout(contains(": 2 training and 2 test images"));
    // A packed file of another size may be a part of a download, so a run refuses it.
    fs::write(&named_gz, b"\x1f\x8b\x08").unwrap();
    let part = doctor().env("COURSE_DATA_DIR", folder.path()).assert().success();
    part.stdout(told("has 3 bytes, and Fashion-MNIST's has 5148; remove it"));
    fs::remove_file(named_gz).unwrap();
    fs::write(path, &labels[..9]).unwrap();
    let broken = doctor().env("COURSE_DATA_DIR", folder.path()).assert().success();
    broken.stdout(told("ends after 1 of the 2 bytes").and(contains("– Fashion-MNIST")));
}

/// Finds a text that goes on below itself.
fn told(text: &str) -> impl Predicate<str> {
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = joined(text);
    function(move |output: &str| joined(output).contains(&text))
}

fn program(folder: &Path, name: &str, script: &str) {
    stand_in(folder.join(name), script).unwrap();
}

#[test]
fn what_answers_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    program(folder.path(), "nvidia-smi", "echo 'Some GPU, 16 GiB, 999.1'; echo 'Another'");
    program(folder.path(), "nvcc", "echo nvcc; echo 'Cuda release 13.0, V13.0.1'");
    program(folder.path(), "mpirun", "echo 'mpirun (Some MPI) 4.1'; echo more; /bin/sleep 60 &");
    program(folder.path(), "mdbook", "exit 3");
    fs::write(folder.path().join("libnccl.so.2"), "").unwrap();
    let mut doctor = doctor();
    doctor.env("PATH", folder.path()).env("LD_LIBRARY_PATH", folder.path());
    doctor.assert().success().stdout(all([
        "✓ NVIDIA GPUs    Some GPU, 16 GiB, 999.1; Another",
        "✓ CUDA toolkit   Cuda release 13.0, V13.0.1",
        // A child that keeps the output open is not waited for.
        "✓ MPI            mpirun (Some MPI) 4.1\n",
        "– mdBook         mdbook failed (exit status: 3); cargo install-tools\n",
        "libnccl.so.2",
        "--features cuda",
        ",nccl -- --device cuda",
    ]));
}

#[test]
fn a_program_that_hangs_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let late = folder.path().join("late");
    let script = format!("(/bin/sleep 7; echo >{}) &\nexec /bin/sleep 60", late.display());
    program(folder.path(), "mpirun", &script);
    let started = Instant::now();
    let answer = doctor().env("PATH", folder.path()).assert().success();
    answer.stdout(contains("mpirun did not answer within 5 s"));
    assert!(started.elapsed() < Duration::from_secs(20));
    std::thread::sleep(Duration::from_secs(8).saturating_sub(started.elapsed()));
    assert!(!late.exists(), "what it started lived on");
}

#[test]
fn images_are_where_this_system_has_its_caches() {
    let home = tempfile::tempdir().unwrap();
    let mut doctor = doctor();
    doctor.env_remove("COURSE_DATA_DIR").env("HOME", home.path());
    doctor.env("XDG_CACHE_HOME", home.path().join("caches"));
    let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { "caches" };
    let place = home.path().join(caches).join("multi-gpu-course/fashion-mnist");
    let place = format!("– Fashion-MNIST not in {}: ", place.display());
    doctor.assert().success().stdout(told(&place));
}
