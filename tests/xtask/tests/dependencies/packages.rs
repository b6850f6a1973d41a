//! Packages of a workspace, and which of them another may use.

use std::process::Command;

use crate::*;

#[derive(Clone, Debug)]
pub(crate) struct Package {
    /// Its folder in the workspace, and those of the packages that it depends on: for what it is, and for its tests.
    pub(crate) folder: String,
    pub(crate) needs: Vec<String>,
    pub(crate) for_tests: Vec<String>,
    /// The root files of its integration tests.
    pub(crate) tests: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Stage(u32),
    Engine,
    Elsewhere,
}

/// The engine crate that implements a trait of stage 2, and so may use stages.
const MAY_USE_STAGES: &str = "engine/backends";

fn place(folder: &str) -> Place {
    match folder.split_once('-').map(|(number, _)| number.parse()) {
        Some(Ok(number)) => Place::Stage(number),
        _ if folder.starts_with("engine/") => Place::Engine,
        _ => Place::Elsewhere,
    }
}

impl Package {
    pub(crate) fn place(&self) -> Place {
        place(&self.folder)
    }
}

/// The packages of the workspace at `root`, as cargo reads their manifests.
pub(crate) fn of(root: &Path) -> Vec<Package> {
    let root = root.canonicalize().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    let answer = cargo
        .args(["metadata", "--no-deps", "--format-version=1"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let metadata: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let relative = |folder: &Path| folder.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    let package = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let (mut needs, mut for_tests) = (Vec::new(), Vec::new());
        for need in package["dependencies"].as_array().unwrap() {
            let Some(path) = need["path"].as_str() else { continue };
            let list = if need["kind"] == "dev" { &mut for_tests } else { &mut needs };
            list.push(relative(Path::new(path)));
        }
        let targets = package["targets"].as_array().unwrap().iter();
        let tests = targets.filter(|target| target["kind"][0] == "test");
        let tests = tests.map(|target| target["src_path"].as_str().unwrap().into()).collect();
        Package { folder: relative(manifest.parent().unwrap()), needs, for_tests, tests }
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

/// What stands against the rule that dependencies point down.
pub(crate) fn problems(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let folder = &package.folder;
        for need in package.needs.iter().chain(&package.for_tests) {
            match (package.place(), place(need)) {
                (Place::Stage(own), Place::Stage(other)) if other >= own => {
                    problems
                        .push(format!("{folder} depends on {need}, a stage that is not before it"));
                }
                (Place::Engine, Place::Stage(_)) if folder != MAY_USE_STAGES => {
                    problems.push(format!("{folder} depends on {need}, a stage"));
                }
                (Place::Stage(_) | Place::Engine, Place::Elsewhere) => {
                    problems.push(format!(
                        "{folder} depends on {need}, which is neither a stage nor in engine/"
                    ));
                }
                _ => {}
            }
        }
        // The one engine crate that uses stages must not lead a stage to itself or up.
        if let Place::Stage(own) = package.place()
            && package.needs.iter().any(|need| need == MAY_USE_STAGES)
            && let Some(between) = packages.iter().find(|package| package.folder == MAY_USE_STAGES)
        {
            let above = between
                .needs
                .iter()
                .filter(|need| matches!(place(need), Place::Stage(other) if other >= own));
            problems.extend(
                above.map(|need| format!("{folder} depends on {need} through {MAY_USE_STAGES}")),
            );
        }
    }
    problems
}
