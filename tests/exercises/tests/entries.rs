//! Every exercise's folder has its entry in this package's manifest, by which cargo finds its check.

use std::fs;
use std::path::Path;

#[test]
fn every_exercise_has_an_entry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let mut exercises = 0;
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with("ch") {
            continue;
        }
        let entry =
            format!("[[test]]\nname = \"{name}\"\npath = \"{name}/check.rs\"\ntest = false\n");
        assert!(manifest.contains(&entry), "Cargo.toml lacks\n{entry}");
        exercises += 1;
    }
    assert_eq!(manifest.matches("/check.rs\"").count(), exercises, "entries without a folder");
}
