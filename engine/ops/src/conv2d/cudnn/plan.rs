//! How a product is computed: what is chosen for it, once in a process for each GPU.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::env;
use std::io::{self, Write as _};
use std::sync::{Arc, LazyLock, Mutex};

use candle_core::cuda_backend::cudarc::cudnn::CudnnError;
use candle_core::{Result, bail};

use super::algorithm::candidates;
use super::choice::{Candidate, Choice, LARGEST_WORKSPACE, Way, take_first, ways};
use super::descriptors::{Descriptors, Handle};
use super::product::Product;
use super::{Number, refused};
use harness::lock::locked;

/// How one thread computes a product.
pub(super) struct Plan {
    pub(super) descriptors: Descriptors,
    /// The one that the descriptors are set to.
    pub(super) choice: Choice,
}

/// What is chosen for a product on a GPU.
struct Chosen {
    choice: Choice,
    /// What is left if cuDNN refuses to run that one.
    others: VecDeque<Way>,
}

/// What is chosen on a GPU, each product once: ranks that share it, and the next threads, need not ask again.
type OfGpu = Arc<Mutex<HashMap<Product, Chosen>>>;

/// What is chosen on GPU number `gpu`.
///
/// Each has a lock of its own. Whoever holds it asks cuDNN, which may load a kernel, and that waits for all that its GPU does:
/// for a sum, perhaps, with another GPU, whose rank must not wait for this lock.
fn chosen_on(gpu: usize) -> OfGpu {
    static CHOSEN: LazyLock<Mutex<HashMap<usize, OfGpu>>> = LazyLock::new(Mutex::default);
    Arc::clone(locked(&CHOSEN).entry(gpu).or_default())
}

/// For measuring what determinism costs: algorithms that add up in whatever order are taken too, which is told once.
static ANY_ORDER: LazyLock<bool> = LazyLock::new(|| {
    let asked = is_set("COURSE_CUDNN_ANY_ORDER");
    if asked {
        say("cuDNN: COURSE_CUDNN_ANY_ORDER is set: the bits may differ from run to run\n");
    }
    asked
});

/// For measuring: what was suggested for each product, and what is taken, is told on stderr.
static TELL: LazyLock<bool> = LazyLock::new(|| is_set("COURSE_CUDNN_TELL"));

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| value == "1")
}

/// In one piece, as other threads may say something there.
pub(super) fn say(text: &str) {
    // Nothing is left to be done about a stderr that is gone.
    drop(io::stderr().write_all(text.as_bytes()));
}

impl Plan {
    /// Of a product of `T` on GPU number `gpu`, whose handle that is.
    pub(super) fn new<T: Number>(handle: &Handle, gpu: usize, product: &Product) -> Result<Self> {
        let descriptors = Descriptors::new::<T>(&product.geometry)?;
        let choice = match locked(&chosen_on(gpu)).entry(*product) {
            Entry::Occupied(chosen) => chosen.get().choice,
            Entry::Vacant(place) => {
                place.insert(Chosen::new(handle, product, &descriptors)?).choice
            }
        };
        let math = descriptors.convolution.set_math(choice.way.math);
        math.map_err(|error| refused(product, error))?;
        Ok(Self { descriptors, choice })
    }

    /// Takes the next way, for good: cuDNN has refused to run what it had suggested, which it does now and then.
    ///
    /// Whether it refuses depends on the shape as well, so the same algorithm computes the same product each time.
    pub(super) fn fall_back(
        &mut self,
        handle: &Handle,
        gpu: usize,
        product: &Product,
        refusal: CudnnError,
    ) -> Result<Way> {
        let all = chosen_on(gpu);
        let mut all = locked(&all);
        let Some(chosen) = all.get_mut(product) else {
            return Err(refused(product, refusal));
        };
        // Otherwise another thread was refused before this one, and has chosen already.
        if chosen.choice == self.choice {
            let descriptors = &self.descriptors;
            let next = take_first(&mut chosen.others, |way| workspace(handle, descriptors, way));
            chosen.choice = next.ok_or_else(|| refused(product, refusal))?;
        }
        self.choice = chosen.choice;
        let way = self.choice.way;
        let math = self.descriptors.convolution.set_math(way.math);
        math.map_err(|error| refused(product, error))?;
        Ok(way)
    }
}

impl Chosen {
    fn new(handle: &Handle, product: &Product, descriptors: &Descriptors) -> Result<Self> {
        let asked = descriptors.convolution.set_math(product.math);
        let suggested = asked.and_then(|()| candidates(handle, product.pass, descriptors));
        let (suggested, silent) = match suggested {
            Ok(suggested) => (suggested, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut others = ways(product, &suggested, *ANY_ORDER);
        let choice = take_first(&mut others, |way| workspace(handle, descriptors, way));
        if *TELL {
            tell(product, &suggested, choice);
        }
        match (choice, silent) {
            (Some(choice), _) => Ok(Self { choice, others }),
            (None, Some(error)) => Err(refused(product, error)),
            (None, None) => bail!(
                "cuDNN: {product}: of {} algorithms that it suggests none is deterministic, works on this GPU and \
                 makes do with {LARGEST_WORKSPACE} bytes of memory, nor do those that every shape should have",
                suggested.len()
            ),
        }
    }
}

/// Bytes of memory that a way needs to work in; `None` if it does not work after all. The descriptors are set to it.
pub(super) fn workspace(handle: &Handle, descriptors: &Descriptors, way: Way) -> Option<usize> {
    descriptors.convolution.set_math(way.math).ok()?;
    way.algorithm.workspace(handle, descriptors).ok()
}

/// One line for a product with the algorithm that is taken, one for each that cuDNN suggests for it.
fn tell(product: &Product, suggested: &[Candidate], taken: Option<Choice>) {
    let mut text = format!("cuDNN: {product}");
    match taken {
        Some(Choice { way: Way { algorithm, math }, workspace }) => {
            text += &format!(": {algorithm:?}, {math:?}, {workspace} bytes\n");
        }
        None => text += ": none\n",
    }
    for Candidate { algorithm, works, deterministic, math } in suggested {
        text += &format!(
            "  suggested: {algorithm:?}, {math:?}, works: {works}, deterministic: {deterministic}\n"
        );
    }
    say(&text);
}
