//! Settings of the user for git and cargo change nothing, and all that both say about a failure is shown.

use super::fixture::{Checkout, stub, tool_in};
use crate::*;

const FILE: &str = "tests/exercises/ch01_sum.rs";
const CHECK: &str = "tests/exercises/checks/ch01_sum.rs";

/// Settings of git: commits are signed, every listing shows the signatures and has colours, and no listing is sorted or refreshed as
/// usual.
const OF_GIT: &str = "[commit]\ngpgSign = true\n[log]\nshowSignature = true\n[color]\nui = always\n\
    [diff]\nautoRefreshIndex = false\nmnemonicPrefix = true\norderFile = /nowhere\n\
    [status]\nshort = true\nbranch = true\nrelativePaths = true\n[core]\nquotePath = true\n";

/// A program that signs everything, and calls every signature a good one.
const SIGNS: &str = "cat >/dev/null\ncase \"$*\" in\n\
    *--verify*) echo 'gpg: Good signature' >&2; echo '[GNUPG:] GOODSIG 1 reader' ;;\n\
    *) echo '-----BEGIN PGP SIGNATURE-----'; echo '-----END PGP SIGNATURE-----'\n\
       printf '\\n[GNUPG:] SIG_CREATED \\n' >&2 ;;\nesac";

#[test]
fn settings_of_git_change_no_original_and_no_edited_check() {
    let (checkout, home) = (Checkout::new(), tempfile::tempdir().unwrap());
    let [signs, settings] = ["gpg", "config"].map(|name| home.path().join(name));
    stand_in(&signs, SIGNS).unwrap();
    let program = format!("{OF_GIT}[gpg]\nprogram = {}\n", signs.display());
    fs::write(&settings, program).unwrap();
    checkout.commit_under(&settings, "given");
    let course = |words: &[&str]| {
        let mut course = checkout.tool(words);
        course.env("GIT_CONFIG_GLOBAL", &settings);
        // A hook of git names a repository.
        course.env("GIT_DIR", "/nowhere").env("GIT_INDEX_FILE", "/nowhere/index");
        course.assert()
    };
    checkout.sum_is("a - b");
    course(&["reset", "sum", "--yes"]).success();
    assert_eq!(checkout.read(FILE), stub("ch01_sum", "ch01-sums"));
    // A check that was only written again is the original.
    let check = checkout.read(CHECK);
    checkout.write(CHECK, &check);
    course(&["list"]).success().stdout(starts_with("· ch01_sum   two numbers, added\n"));
    checkout.write(CHECK, &check.replace('5', "6"));
    checkout.sum_is("a + b + 1");
    course(&["check", "sum"]).code(1).stderr(contains("its check was edited"));
}

#[test]
fn the_remedy_of_git_is_shown() {
    let checkout = Checkout::new();
    checkout.commit("given");
    checkout.sum_is("a - b");
    let mut reset = checkout.tool(&["reset", "sum", "--yes"]);
    // Git's own tests set this variable.
    let reset = reset.env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1").assert().code(1);
    reset.stderr(all([
        "the original of tests/exercises/ch01_sum.rs is not known here",
        "detected dubious ownership in repository at",
        "git config --global --add safe.directory",
    ]));
}

#[test]
fn settings_of_cargo_may_move_what_it_builds() {
    let first = "The first check compiles the stages";
    for (settings, variable, folder, program) in [
        ("build-dir = \"elsewhere\"", None, "", "target/release/ch01_sum"),
        ("target-dir = \"elsewhere\"", None, "tests", "elsewhere/release/ch01_sum"),
        ("target = \"host-tuple\"", None, "", "target/*/release/ch01_sum"),
        // Relative to the folder of the user, as it is for cargo.
        ("", Some("elsewhere"), "tests", "tests/elsewhere/release/ch01_sum"),
    ] {
        let checkout = Checkout::new();
        checkout.write(".cargo/config.toml", &format!("[build]\n{settings}\n"));
        checkout.sum_is("a + b");
        for says_first in [true, false] {
            let mut check = tool_in(&checkout.path(folder), &["check", "sum"]);
            variable.map(|folder| check.env("CARGO_TARGET_DIR", folder));
            let check = check.assert().success().stdout(starts_with("✓ ch01_sum passes"));
            let said = String::from_utf8_lossy(&check.get_output().stderr).contains(first);
            assert_eq!(said, says_first, "{settings}, {variable:?}");
        }
        let (above, below) = program.split_once("/*").unwrap_or((program, ""));
        let is_there = |above: PathBuf| above.join(below.trim_start_matches('/')).is_file();
        let above = checkout.path(above);
        let found = match below {
            "" => above.is_file(),
            _ => fs::read_dir(above).unwrap().any(|entry| is_there(entry.unwrap().path())),
        };
        assert!(found, "{program}");
    }
}
