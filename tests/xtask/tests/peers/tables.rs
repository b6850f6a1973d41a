//! What is stored: all of it, parts that add up, and when.

use super::stand_ins::{answers, peers, stored};
use crate::*;

#[test]
fn what_is_stored_has_a_stable_order() {
    let answer = r#"{"seconds": {"drawing": [1], "decoding": [2]}}"#;
    let folder = answers(&[("drawing", answer), ("decoding", answer)]);
    let store = || {
        peers(folder.path(), &["--only", "data", "--quick"]).assert().success();
        let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
        // Midnight may lie between the two.
        let dateless = text.lines().filter(|line| !line.starts_with("  \"date\""));
        dateless.map(|line| format!("{line}\n")).collect::<String>()
    };
    let first = store();
    assert_eq!(first, store());
    assert!(first.starts_with("{\n  \"command\": \"cargo xtask peers --alternations 1"));
    assert!(first.ends_with("}\n"));
}

#[test]
fn an_update_replaces_its_own_rows_and_no_others() {
    let step = |seconds: &str| format!(r#"{{"seconds": {{"step": [{seconds}]}}}}"#);
    let with = |ours: &str| {
        let (ours, theirs) = (step(ours), step("2"));
        answers(&[("lenet-step", &ours), ("lenet_step.py", &theirs)])
    };
    let (before, after) = (with("2"), with("1"));
    peers(before.path(), &["--only", "lenet-step"]).assert().success();
    fs::copy(before.path().join("out.json"), after.path().join("out.json")).unwrap();
    peers(after.path(), &["--only", "lenet-step", "--update"]).assert().success();
    let medians = |table: &Value| -> Vec<Value> {
        let rows = table["rows"].as_array().unwrap();
        rows.iter().map(|row| row["ours"][0]["median"].clone()).collect()
    };
    assert_eq!(medians(&stored(before.path())), [2.0, 2.0]);
    assert_eq!(medians(&stored(after.path())), [1.0, 1.0]);
    // Alternations are part of how the table was measured.
    let flags = ["--only", "lenet-step", "--update", "--alternations", "3"];
    let refused = || {
        fs::remove_file(after.path().join("log")).unwrap();
        let refused = peers(after.path(), &flags).assert().code(1).stdout("");
        // Before anything was measured.
        assert_eq!(fs::read_to_string(after.path().join("log")).unwrap(), "versions.py\n");
        refused
    };
    refused().stderr(contains("another entry \"alternations\""));
    fs::write(after.path().join("out.json"), "no table").unwrap();
    refused().stderr(contains("the stored table"));
}

#[test]
fn a_machine_whose_memory_has_grown_is_the_same() {
    let step = r#"{"seconds": {"step": [1]}}"#;
    let folder = answers(&[("lenet-step", step), ("lenet_step.py", step)]);
    peers(folder.path(), &["--only", "lenet-step"]).assert().success();
    let change = |what: &str, to: &str| {
        let mut table = stored(folder.path());
        table["machine"][what] = to.into();
        fs::write(folder.path().join("out.json"), table.to_string()).unwrap();
    };
    let update = || peers(folder.path(), &["--only", "lenet-step", "--update"]).assert();
    change("memory", "0.5 GiB");
    update().success();
    assert_eq!(stored(folder.path())["machine"]["memory"], "0.5 GiB");
    change("processor", "another one");
    update().code(1).stderr(contains("another entry \"machine\""));
}

#[test]
fn parts_of_a_table_add_up_in_one_file() {
    let at = |seconds: &str| format!(r#"{{"seconds": {{"step": [{seconds}]}}}}"#);
    let folder = answers(&[]);
    // All sides take so long.
    let part = |seconds: &str, flags: &[&str]| {
        for name in ["resnet18-step", "resnet18_step.py", "lenet-step", "lenet_step.py"] {
            fs::write(folder.path().join(name), at(seconds)).unwrap();
        }
        let flags = [&["--update", "--alternations", "1"], flags].concat();
        peers(folder.path(), &flags).assert().success();
        let stored = stored(folder.path());
        // That of the whole table.
        assert_eq!(stored["command"], "cargo xtask peers --alternations 1");
        let rows = stored["rows"].as_array().unwrap().iter();
        let row = |row: &Value| {
            let what = row["what"].as_str().unwrap().replace(" step, batch", "");
            let threads = row["threads"].as_str().unwrap();
            format!("{what} × {threads}: {}", row["ours"][0]["median"])
        };
        rows.map(row).collect::<Vec<_>>()
    };
    let [sixteen, lenet, sixty_four] = [
        ["ResNet-18 16 × 1", "ResNet-18 16 × 2"],
        ["LeNet 256 × 1", "LeNet 256 × 2"],
        ["ResNet-18 64 × 1", "ResNet-18 64 × 2"],
    ];
    let rows = |parts: &[([&str; 2], &str)]| -> Vec<String> {
        let row =
            |(names, seconds): &([&str; 2], &str)| names.map(|name| format!("{name}: {seconds}"));
        parts.iter().flat_map(row).collect()
    };
    let of_batch = |batch| ["--only", "resnet18-step", "--precision", "f32", "--batch", batch];
    // The first one begins the file.
    assert_eq!(part("1", &of_batch("16")), rows(&[(sixteen, "1.0")]));
    let lenets = part("2", &["--only", "lenet-step"]);
    assert_eq!(lenets, rows(&[(sixteen, "1.0"), (lenet, "2.0")]));
    let sixty_fours = part("3", &of_batch("64"));
    assert_eq!(sixty_fours, rows(&[(sixteen, "1.0"), (sixty_four, "3.0"), (lenet, "2.0")]));
    let again = part("4", &of_batch("16"));
    assert_eq!(again, rows(&[(sixteen, "4.0"), (sixty_four, "3.0"), (lenet, "2.0")]));
    // Work that there was once.
    let path = folder.path().join("out.json");
    let older = fs::read_to_string(&path).unwrap().replace("LeNet step, batch 256", "LeNet step");
    fs::write(&path, older).unwrap();
    let renewed = part("5", &["--only", "lenet-step"]);
    assert_eq!(renewed, rows(&[(sixteen, "4.0"), (sixty_four, "3.0"), (lenet, "5.0")]));
}

#[test]
fn what_was_measured_is_in_the_file_before_the_next_comparison_ends() {
    let step = r#"{"seconds": {"step": [1]}}"#;
    let folder = answers(&[("lenet-step.1", step), ("lenet_step.py", step)]);
    // The second call is of the second comparison.
    let script = format!("cd \"$ANSWERS\"\ncp out.json then.json\necho '{step}'");
    stand_in(folder.path().join("lenet-step.2"), &script).unwrap();
    peers(folder.path(), &["--only", "lenet-step", "--alternations", "1"]).assert().success();
    let rows = |name: &str| {
        let table = fs::read(folder.path().join(name)).unwrap();
        let table: Value = serde_json::from_slice(&table).unwrap();
        table["rows"].as_array().unwrap().len()
    };
    assert_eq!((rows("then.json"), rows("out.json")), (1, 2));
}
