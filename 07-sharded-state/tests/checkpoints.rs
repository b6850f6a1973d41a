//! Sets of shards: a run that ended too early resumes on any number of ranks, and a set that does not suit is refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs};

use candle_core::Device;
use checkpoints::{Checkpoints, Configuration, Resume};
use concise_wrapper::counted::Counted;
use concise_wrapper::{Error, Model, Store, train};
use datasets::source::LoadedData;
use datasets::{CLASSES, PIXELS, SAMPLE};
use harness::records::{EpochRecord, TrainOptions};
use harness::report::Report;
use model_parallel::layers::Layers;
use model_parallel::{Checked, UNBOUNDED, check};
use ops::difference::largest_difference;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::Rank;
use sharded_state::{Sets, Sharing, Strategy};
use tempfile::TempDir;

use crate::cases::{CASE, Case, Named, Net, Updates, images, on_ranks, sorted, values};
use crate::files::names_in;
use crate::watched::{Event, Watched};

const ZERO1: Strategy = Sharing::Zero1.plain();
const ZERO3: Strategy = Strategy { sharing: Sharing::Zero3, prefetches: true, recomputes: None };
const DDP: Strategy = Strategy { sharing: Sharing::Ddp, ..ZERO1 };

/// Three batches in each epoch.
const OPTIONS: TrainOptions =
    TrainOptions { epochs: 2, batch_size: 7, learning_rate: 0.01, seed: 1 };

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Last,
    /// An event in this step, of the last rank if it is a fault.
    In(usize, Event),
    /// Each step takes a while.
    Kill,
}

impl End {
    fn at(self, step: usize, rank: &SharedCommunicator) -> Event {
        if self == Self::Kill {
            sleep(Duration::from_millis(10));
        }
        let Self::In(this, event) = self else { return Event::Nothing };
        let is_fault = matches!(event, Event::Crash | Event::RunAway);
        let happens = this == step && (!is_fault || rank.rank() + 1 == rank.world_size());
        if happens { event } else { Event::Nothing }
    }
}

/// A run on some ranks. A test changes a copy.
#[derive(Clone, Debug)]
struct Run {
    case: Case,
    strategy: Strategy,
    options: TrainOptions,
    checkpoints: Option<Checkpoints>,
    /// The folder of the last rank, if it is another one.
    elsewhere: Option<PathBuf>,
    end: End,
}

#[derive(Debug)]
struct Trained {
    /// Of the whole model.
    weights: Named,
    /// Of each step.
    losses: Vec<f64>,
    records: Vec<EpochRecord>,
}

fn dense() -> Layers {
    Layers::dense(&[PIXELS, 9, 3, 7, CLASSES]).unwrap()
}

/// The last rank fails in the step after this one.
fn failure(step: usize) -> End {
    End::In(step + 1, Event::Crash)
}

fn run(strategy: Strategy, updates: Updates) -> Run {
    let case = Case { net: Net::Made(dense, &SAMPLE), updates, ..CASE };
    Run { case, strategy, options: OPTIONS, checkpoints: None, elsewhere: None, end: End::Last }
}

impl Run {
    /// The same run on so many ranks.
    fn on(self, ranks: usize) -> Self {
        Self { case: Case { ranks, ..self.case }, ..self }
    }

    /// The same run of other layers.
    fn of(&self, layers: fn() -> Layers) -> Self {
        Self { case: Case { net: Net::Made(layers, &SAMPLE), ..self.case }, ..self.clone() }
    }

    fn keeping(&self, folder: &Path) -> Self {
        let configuration = Configuration(vec![("model".to_owned(), "a network".to_owned())]);
        let folder = folder.to_owned();
        let checkpoints =
            Checkpoints { folder, every: 1, keep: 3, resume: None, scale: 1, configuration };
        Self { checkpoints: Some(checkpoints), ..self.clone() }
    }

    fn every(mut self, every: usize) -> Self {
        self.checkpoints.as_mut().unwrap().every = every;
        self
    }

    /// Leaves a folder of a run that ended like this.
    fn left(&self, end: End) -> TempDir {
        let folder = TempDir::new().unwrap();
        let run = self.keeping(folder.path());
        let run = if let End::In(_, Event::Crash) = end { run } else { run.every(1000) };
        let ended = Self { end, ..run }.train();
        assert_eq!(ended.is_err(), matches!(end, End::In(_, Event::Crash)), "{ended:?}");
        folder
    }

    /// Resumes from a copy of a folder.
    fn resume(&self, folder: &Path, which: Resume) -> Result<Trained, String> {
        let copied = TempDir::new().unwrap();
        for name in names_in(folder) {
            fs::copy(folder.join(&name), copied.path().join(&name)).unwrap();
        }
        self.resume_in(copied.path(), which)
            .map_err(|told| told.replace(copied.path().to_str().unwrap(), folder.to_str().unwrap()))
    }

    fn resume_in(&self, folder: &Path, which: Resume) -> Result<Trained, String> {
        let mut run = self.keeping(folder);
        run.checkpoints.as_mut().unwrap().resume = Some(which);
        run.train()
    }

    fn refused(&self, folder: &Path) -> String {
        self.resume(folder, Resume::Newest).unwrap_err()
    }

    fn train(&self) -> Result<Trained, String> {
        let (train, test) = (images(19), images(11));
        let data = LoadedData { name: "noise".to_owned(), train, test };
        let checked = check(self.case.schedule(self.strategy), UNBOUNDED).unwrap();
        let mut all = on_ranks(self.case.ranks, |rank| match self.strategy.sharing {
            Sharing::Ddp => self.whole(rank, &checked, &data),
            _ => self.sharded(rank, &checked, &data),
        })?;
        let first = all.swap_remove(0);
        for other in all {
            assert_eq!(values(&other.weights), values(&first.weights), "ranks are equal");
            assert_eq!(other.losses, first.losses, "ranks are equal");
        }
        Ok(first)
    }

    fn sharded(&self, rank: &Rank, checked: &Checked, data: &LoadedData) -> Result<Trained, Error> {
        let executor = self.case.executor_of_chunks(&Device::Cpu, &Counted::new(rank), checked)?;
        let is_last = rank.rank() + 1 == rank.world_size();
        let sets = self.checkpoints.clone().map(|mut flags| {
            flags.folder = self.elsewhere.clone().filter(|_| is_last).unwrap_or(flags.folder);
            Sets::new(flags, self.strategy.sharing, &executor)
        });
        let sets = sets.transpose()?;
        let store = sets.as_ref().map(|it| it as &dyn Store);
        let (losses, records) = self.steps(&executor, data, store)?;
        let mut weights = Named::new();
        for unit in executor.units() {
            weights.extend(unit.whole()?);
        }
        Ok(Trained { weights: sorted(weights), losses, records })
    }

    fn whole(&self, rank: &Rank, checked: &Checked, data: &LoadedData) -> Result<Trained, Error> {
        let executor = self.case.executor_of_whole(&Device::Cpu, &Counted::new(rank), checked)?;
        let store = self.checkpoints.as_ref().map(|it| it as &dyn Store);
        let (losses, records) = self.steps(&executor, data, store)?;
        Ok(Trained { weights: sorted(executor.weights().snapshot()?), losses, records })
    }

    fn steps(
        &self,
        model: &impl Model,
        data: &LoadedData,
        store: Option<&dyn Store>,
    ) -> Result<(Vec<f64>, Vec<EpochRecord>), Error> {
        let rank = model.rank().unwrap();
        let watched = Watched::new(model, |step| self.end.at(step, rank));
        let (mut optimizer, report) = (self.case.updates.optimizer(), &mut Report::silent());
        let (optimizer, options) = (&mut *optimizer, &self.options);
        let trained = train(&watched, data, options, (optimizer, 4), store, report, |_| Ok(()))?;
        Ok((watched.losses.take(), trained.records))
    }
}

fn index(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("step-{step:08}.safetensors"))
}

fn shard(folder: &Path, step: usize, rank: usize, ranks: usize) -> PathBuf {
    folder.join(format!("step-{step:08}.shard-{rank}-of-{ranks}.safetensors"))
}

/// Compares a run that resumed with an undisturbed run.
fn close(found: &Trained, expected: &Trained, largest: f64, what: &str) {
    let difference = largest_difference(&found.weights, &expected.weights).unwrap();
    assert!(difference < largest, "{what}: weights {difference:e}");
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < largest, "{what}: {a} {b}");
    let skipped = expected.losses.len() - found.losses.len();
    for (found, expected) in found.losses.iter().zip(&expected.losses[skipped..]) {
        near(*found, *expected);
    }
    assert_eq!(found.records.len(), expected.records.len(), "{what}");
    for (found, expected) in found.records.iter().zip(&expected.records) {
        near(found.train_loss, expected.train_loss);
        near(found.test_loss, expected.test_loss);
        assert_eq!(found.train_accuracy, expected.train_accuracy, "{what}");
    }
}

fn same(found: &Trained, expected: &Trained, what: &str) {
    assert_eq!(values(&found.weights), values(&expected.weights), "{what}");
    close(found, expected, f64::MIN_POSITIVE, what);
}

#[test]
fn a_run_that_failed_resumes_on_any_number_of_ranks() {
    for strategy in [ZERO1, Strategy { sharing: Sharing::Zero2, ..ZERO1 }, ZERO3] {
        for updates in [Updates::Momentum, Updates::AdamW] {
            for (ranks, step) in [(1, 1), (2, 4), (3, 3), (4, 2)] {
                let begun = run(strategy, updates).on(ranks);
                let undisturbed = begun.train().unwrap();
                let folder = begun.left(failure(step));
                for ranks in 1..=4 {
                    let what = format!("{begun:?}, then {ranks}");
                    let rest = begun.clone().on(ranks);
                    let rest = rest.resume(folder.path(), Resume::Newest).unwrap();
                    assert_eq!(rest.losses.len(), 6 - step, "{what}");
                    close(&rest, &undisturbed, 1e-10, &what);
                    if ranks == begun.case.ranks {
                        same(&rest, &undisturbed, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn after_ctrl_c_there_is_a_set() {
    for end in [End::In(2, Event::Interrupt), End::In(3, Event::InterruptEvaluation)] {
        for strategy in [ZERO1, ZERO3] {
            let begun = run(strategy, Updates::AdamW).on(3);
            let undisturbed = begun.train().unwrap();
            let folder = begun.left(end);
            for ranks in [2, 3] {
                let rest = begun.clone().on(ranks);
                let rest = rest.resume(folder.path(), Resume::Newest).unwrap();
                close(&rest, &undisturbed, 1e-10, &format!("{end:?} {strategy:?} {ranks}"));
            }
        }
    }
}

/// The run keeps one set, and a chunk of the last rank is infinite after step 3.
#[test]
fn no_rank_writes_a_set_when_a_chunk_is_not_finite_and_the_last_set_stays() {
    for (strategy, ranks) in [(ZERO1, 1), (ZERO1, 3), (ZERO3, 2), (DDP, 2)] {
        let begun = run(strategy, Updates::AdamW).on(ranks);
        let folder = TempDir::new().unwrap();
        let mut keeping = Run { end: End::In(3, Event::RunAway), ..begun.keeping(folder.path()) };
        keeping.checkpoints.as_mut().unwrap().keep = 1;
        let error = keeping.train().unwrap_err();
        let [refused, last] = [3, 2].map(|step| index(folder.path(), step));
        let (refused, last) = (refused.display(), last.display());
        assert!(error.contains(&format!("{refused} is not written, because ")), "{error}");
        let end = format!(
            " is not finite, most likely because the learning rate is too large; the last checkpoint stays: {last}"
        );
        assert!(error.ends_with(&end), "{error}");
        let of_others = |name: &String| name != "lock" && !name.starts_with("step-00000002.");
        assert!(!names_in(folder.path()).iter().any(of_others), "{:?}", names_in(folder.path()));
        let rest = begun.resume(folder.path(), Resume::LatestValid).unwrap();
        same(&rest, &begun.train().unwrap(), &format!("{strategy:?} {ranks}"));
    }
}

/// Each of four micro-batches is normalised by itself, on any number of ranks.
#[test]
fn running_statistics_are_kept_once() {
    let options = TrainOptions { epochs: 1, ..OPTIONS };
    let begun = run(ZERO3, Updates::Momentum).of(|| Layers::resnet18(1));
    let begun = Run { options, ..begun };
    let undisturbed = begun.train().unwrap();
    let folder = begun.left(failure(1));
    for (ranks, micro_batches) in [(1, 4), (2, 2), (4, 1)] {
        let rest = Run { case: Case { ranks, micro_batches, ..begun.case }, ..begun.clone() };
        let rest = rest.resume(folder.path(), Resume::Newest).unwrap();
        close(&rest, &undisturbed, 1e-8, &format!("{ranks}"));
        if ranks == 2 {
            same(&rest, &undisturbed, "as before");
        }
    }
}

#[test]
fn under_ddp_there_are_checkpoints_of_stage_5() {
    let begun = run(DDP, Updates::AdamW);
    let undisturbed = begun.train().unwrap();
    let folder = begun.left(failure(2));
    assert_eq!(names_in(folder.path()).len(), 3, "two checkpoints and the lock");
    for ranks in [1, 2, 3] {
        let rest = begun.clone().on(ranks);
        let rest = rest.resume(folder.path(), Resume::Newest).unwrap();
        close(&rest, &undisturbed, 1e-10, &format!("{ranks}"));
    }
}

const FOLDER: &str = "SHARDED_FOLDER";
const RANKS: &str = "SHARDED_RANKS";

/// Thirty steps.
fn long() -> Run {
    let options = TrainOptions { epochs: 10, ..OPTIONS };
    Run { options, ..run(ZERO3, Updates::Momentum) }
}

/// No test, but what the process does that is killed.
#[test]
fn child() {
    let (Some(folder), Ok(ranks)) = (env::var_os(FOLDER), env::var(RANKS)) else { return };
    let (folder, ranks) = (PathBuf::from(folder), ranks.parse().unwrap());
    let run = Run { end: End::Kill, ..long().on(ranks) };
    let begins = indices(&folder).is_empty();
    if begins { run.keeping(&folder).train() } else { run.resume_in(&folder, Resume::Newest) }
        .unwrap();
}

fn indices(folder: &Path) -> Vec<String> {
    let is_index = |name: &String| name.starts_with("step-") && name.matches('.').count() == 1;
    names_in(folder).into_iter().filter(is_index).collect()
}

#[test]
fn a_process_that_is_killed_again_and_again_leaves_a_set() {
    let folder = TempDir::new().unwrap();
    let mut newest = String::new();
    for ranks in [2, 3, 1, 4] {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["checkpoints::child", "--exact"]).stdout(Stdio::null());
        let mut child =
            child.env(FOLDER, folder.path()).env(RANKS, ranks.to_string()).spawn().unwrap();
        let before = newest.clone();
        while newest == before {
            sleep(Duration::from_millis(3));
            newest = indices(folder.path()).pop().unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "the process ended by itself");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let rest = long().resume_in(folder.path(), Resume::Newest).unwrap();
    close(&rest, &long().train().unwrap(), 1e-10, &newest);
}

#[test]
fn surplus_sets_go_with_their_shards() {
    let folder = run(ZERO3, Updates::AdamW).left(failure(5));
    let expected = |ranks: usize, steps: [usize; 3]| {
        let of = |step: usize| {
            let mut all: Vec<_> =
                (0..ranks).map(|rank| shard(folder.path(), step, rank, ranks)).collect();
            all.insert(0, index(folder.path(), step));
            all
        };
        let mut all: Vec<_> = steps.into_iter().flat_map(of).collect();
        all.push(folder.path().join("lock"));
        all.sort();
        all
    };
    let found =
        || names_in(folder.path()).iter().map(|it| folder.path().join(it)).collect::<Vec<_>>();
    assert_eq!(found(), expected(2, [3, 4, 5]));
    // A set whose index was never written.
    fs::copy(shard(folder.path(), 5, 1, 2), shard(folder.path(), 6, 1, 2)).unwrap();
    let longer = TrainOptions { epochs: 3, ..OPTIONS };
    let longer = Run { options: longer, ..run(ZERO3, Updates::AdamW).on(3) };
    longer.resume_in(folder.path(), Resume::Newest).unwrap();
    assert_eq!(found(), expected(3, [7, 8, 9]));
}

#[test]
fn a_set_that_is_not_whole_is_refused() {
    let begun = run(ZERO3, Updates::AdamW);
    let undisturbed = begun.train().unwrap();
    let folder = begun.left(failure(2));
    let path = folder.path();
    let (newest, stays) = (shard(path, 2, 1, 2), fs::read(shard(path, 2, 1, 2)).unwrap());
    let older = |steps: usize| {
        let rest = begun.resume(path, Resume::LatestValid).unwrap();
        assert_eq!(rest.losses.len(), steps);
        same(&rest, &undisturbed, "from the older set");
    };
    let hint = "; --resume latest-valid takes the newest checkpoint that can be used";

    fs::remove_file(&newest).unwrap();
    let told = begun.refused(path);
    let expected = format!("cannot read {}: No such file or directory", newest.display());
    assert!(told.contains(&expected) && told.ends_with(hint), "{told}");
    assert!(!told.contains('\n'), "{told}");
    older(5);

    for at in [stays.len() - 1, stays.len() / 2, 0, 8, 20] {
        let mut changed = stays.clone();
        changed[at] ^= 1;
        fs::write(&newest, changed).unwrap();
        let told = begun.refused(path);
        let expected = format!("checkpoint {} is damaged: it", newest.display());
        assert!(told.contains(&expected) && told.ends_with(hint), "{told}");
    }
    fs::write(&newest, &stays[..stays.len() / 2]).unwrap();
    assert!(begun.refused(path).contains("is damaged"));
    // A shard of an earlier step, and of another rank.
    for other in [shard(path, 1, 1, 2), shard(path, 2, 0, 2)] {
        fs::copy(other, &newest).unwrap();
        let told = begun.refused(path);
        assert!(told.contains("its content is not the content that was written"), "{told}");
    }
    older(5);
    fs::write(&newest, &stays).unwrap();
    older(4);

    // Without its index, a set is only half-written.
    fs::remove_file(index(path, 2)).unwrap();
    let rest = begun.resume(path, Resume::Newest).unwrap();
    assert_eq!(rest.losses.len(), 5);
    same(&rest, &undisturbed, "from the older set");
    fs::remove_file(index(path, 1)).unwrap();
    let told = begun.refused(path);
    assert!(told.contains("there is no checkpoint to resume from"), "{told}");
    // Nobody resumes from it, and so a run may begin.
    same(&begun.keeping(path).train().unwrap(), &undisturbed, "from the beginning");
}

#[test]
fn a_set_of_another_run_is_refused_with_the_difference() {
    let begun = run(ZERO3, Updates::AdamW);
    let folder = begun.left(failure(2));
    let path = format!("checkpoint {} is ", index(folder.path(), 2).display());
    let told = |other: &Run| {
        let told = other.refused(folder.path());
        assert!(!told.contains('\n'), "{told}");
        told.split_once(&path).unwrap_or_else(|| panic!("{told}")).1.to_owned()
    };
    let sharing = |sharing| told(&Run { strategy: Strategy { sharing, ..ZERO1 }, ..begun.clone() });
    assert_eq!(sharing(Sharing::Zero1), "of sharing zero3, this run's is zero1");
    assert_eq!(sharing(Sharing::Zero2), "of sharing zero3, this run's is zero2");
    assert_eq!(sharing(Sharing::Ddp), "of sharing zero3, this run's is none");
    let wider = || Layers::dense(&[PIXELS, 9, 4, 7, CLASSES]).unwrap();
    let model = "of unit 1 dense1.weight [9, 3], dense1.bias [3] (30 in a row), \
                 this run's is dense1.weight [9, 4], dense1.bias [4] (40 in a row)";
    assert_eq!(told(&begun.of(wider)), model);
    let fewer = || Layers::dense(&[PIXELS, 9, 3, 7]).unwrap();
    let model =
        "of unit 3 dense3.weight [7, 10], dense3.bias [10] (80 in a row), this run's is none";
    assert_eq!(told(&begun.of(fewer)), model);
    let momentum = told(&run(ZERO3, Updates::Momentum));
    assert_eq!(momentum, "of momentum none, this run's is 0.9");
    let options = TrainOptions { learning_rate: 0.02, ..OPTIONS };
    let rate = told(&Run { options, ..begun.clone() });
    assert_eq!(rate, "of learning rate 0.01, this run's is 0.02: resume with --lr 0.01");
    // What changes no number may change.
    let other =
        Run { strategy: Strategy { prefetches: false, recomputes: Some(2), ..ZERO3 }, ..begun };
    let rest = other.resume(folder.path(), Resume::Newest).unwrap();
    same(&rest, &run(ZERO3, Updates::AdamW).train().unwrap(), "without prefetch");

    let of_stage_5 = run(DDP, Updates::AdamW).left(failure(2));
    let told = other.refused(of_stage_5.path());
    assert!(told.ends_with("is of sharing none, this run's is zero3"), "{told}");
    let not_empty = other.keeping(folder.path()).train().unwrap_err();
    assert!(not_empty.contains("it has checkpoints up to step 2: resume from them"), "{not_empty}");
}

#[test]
fn all_ranks_end_when_one_cannot_write() {
    for rank in 0..3 {
        let folder = TempDir::new().unwrap();
        let path = shard(folder.path(), 2, rank, 3);
        fs::create_dir(&path).unwrap();
        let run = run(ZERO3, Updates::AdamW).on(3).keeping(folder.path());
        let told = run.train().unwrap_err();
        let expected = format!("cannot write {}: ", path.display());
        assert!(told.contains(&expected) && told.contains(&format!("rank {rank}")), "{told}");
        assert!(!told.contains('\n'), "{told}");
        assert_eq!(indices(folder.path()), ["step-00000001.safetensors"]);
    }
}

#[test]
fn all_ranks_need_one_folder() {
    let [folder, other] = [(); 2].map(|()| TempDir::new().unwrap());
    let elsewhere = Some(other.path().to_owned());
    let run = Run { elsewhere, ..run(ZERO1, Updates::AdamW).keeping(folder.path()) };
    let told = run.train().unwrap_err();
    let missing = shard(folder.path(), 1, 1, 2);
    let expected = format!("cannot find {}: another rank wrote it to another", missing.display());
    assert!(told.contains(&expected) && !told.contains('\n'), "{told}");
    assert!(indices(folder.path()).is_empty());
}

#[test]
fn a_mesh_with_a_tensor_axis_has_no_shards() {
    let folder = TempDir::new().unwrap();
    let Run { checkpoints, .. } = run(ZERO3, Updates::AdamW).keeping(folder.path());
    let case = Case { ranks: 1, parts: 2, ..CASE };
    let told = on_ranks(2, |rank| {
        let checked = check(case.schedule(ZERO3), UNBOUNDED).unwrap();
        let executor = case.executor_of_chunks(rank.device(), &Counted::new(rank), &checked)?;
        Sets::new(checkpoints.clone().unwrap(), Sharing::Zero3, &executor).map(drop)
    });
    let told = told.unwrap_err();
    let expected = "a mesh with a tensor axis has no checkpoints in shards";
    assert!(told.contains(expected) && !told.contains('\n'), "{told}");
}
