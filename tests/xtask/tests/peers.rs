//! `cargo xtask peers`: mistakes in the flags, and our side. The files of the turns and the table have their own tests.

use crate::*;

#[test]
fn mistakes_are_one_line() {
    let here = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-cache");
    let ours = ["--ours", "no-program", "--only"];
    for (code, flags, told) in [
        (2, &["everything"][..], "lenet-step"),
        // All is f32 there, and no step has seven images.
        (2, &["memory", "--precision", "tf32"], "nothing is measured as --only"),
        (2, &["lenet-step", "--batch", "7"], "nothing is measured as --only"),
        (1, &["memory", "--output", "/dev/null/file"], "error: /dev/null/file"),
        (1, &["memory"], "there is no Python with PyTorch at"),
        (1, &["memory", "--python", "no-program"], "has no PyTorch that works"),
    ] {
        let mut peers = tool(&[&["peers"], &ours[..], flags].concat());
        let run = peers.env("XDG_CACHE_HOME", here).env("HOME", here).assert().code(code);
        run.stdout("").stderr(starts_with("error: ").and(contains(told)));
    }
}

/// Each kind of work at its smallest. Older builds, which `--ours` measures, have the same flags and answers.
#[test]
fn our_side_answers_with_what_it_is_asked_for() {
    let answer = |words: &str| -> Value {
        let words: Vec<&str> = words.split(' ').collect();
        let output = tool(&["peers-ours"]).args(words).assert().success().get_output().clone();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let step = &["step"][..];
    let sizes = &["4 KB", "1 MB", "45 MB"];
    for (words, series) in [
        ("lenet-step --batch 4", step),
        ("lenet-step --batch 4 --precision bf16", step),
        ("data-parallel-step --batch 4", step),
        ("resnet18-step --batch 4", step),
        ("resnet18-step --batch 4 --precision bf16", step),
        ("gpt-step --batch 2 --blocks 1 --width 8 --heads 2 --context 4", step),
        ("resnet18-ddp-step --batch 4", step),
        ("convolutions --batch 1", &["forward", "backward", "both"]),
        ("all-reduce --algorithm tree", sizes),
        ("add-and-copy --threads 1", sizes),
    ] {
        let answer = answer(&format!("{words} --repetitions 2"));
        for name in series {
            let numbers = answer["seconds"][name].as_array().unwrap();
            assert_eq!(numbers.len(), 2, "{answer}");
            assert!(numbers.iter().all(|number| number.as_f64().unwrap() > 0.0), "{answer}");
        }
    }
    if cfg!(target_os = "linux") {
        let answer = answer("memory --images 300");
        let bytes = |name: &str| answer["bytes"][name][0].as_f64().unwrap();
        // The activations of a batch alone are 20 MB.
        let before = bytes("before the data");
        assert!(before > 0.0 && bytes("peak") > before + 20e6, "{answer}");
    }
}
