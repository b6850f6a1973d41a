//! A process with several threads keeps its environment.

use std::env;
use std::process::Command;

use harness::cli::{self, DATA_FOLDER};

const CHILD: &str = "PREPARED_LATE";

/// This test runs in a second thread. Another thread may read the environment at any time.
#[test]
fn the_environment_is_left_alone_where_another_thread_may_read_it() {
    if env::var_os(CHILD).is_some() {
        cli::prepare();
        assert_eq!(env::var_os(DATA_FOLDER), Some("".into()));
        return;
    }
    let name = "the_environment_is_left_alone_where_another_thread_may_read_it";
    let mut child = Command::new(env::current_exe().expect("this program has a path"));
    child.args(["--exact", name]).env(CHILD, "1").env(DATA_FOLDER, "");
    assert!(child.status().expect("this program can be started").success());
}
