//! Tensors by name, of which each rank gets its part.
//!
//! The initial value of a tensor depends on its name and the seed alone, and so must that of a part: put
//! together, the parts have to be the tensor that one device would have. So a rank draws the *whole* tensor,
//! keeps its part and forgets the rest.
//!
//! ```text
//! rank 0   draw "dense0.weight" [784, 512] → columns   0..256 → [784, 256]
//! rank 1   draw "dense0.weight" [784, 512] → columns 256..512 → [784, 256]
//! ```
//!
//! That costs each rank the time to draw the whole model, and for a moment the memory of its largest tensor, in
//! f64. It is what Megatron-LM does when it initialises on the CPU. A generator that can be asked for its i-th
//! number would spare both; the normal distribution's takes a varying number of random bits for each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use concise_wrapper::initial;
use harness::lock::locked;

use super::cut::Cut;
use super::group::Group;

/// A builder of tensors that are split over the ranks of a group.
///
/// A layer asks it for whole tensors by name, with the cut; it gets this rank's parts.
#[derive(Clone)]
pub struct Parts<'a> {
    vb: VarBuilder<'a>,
    group: Group,
    placements: Placements,
}

/// The whole tensor that a part is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) whole: Shape,
    pub(super) cut: Cut,
}

/// The tensors of a network that are split, by name.
#[derive(Clone, Default)]
pub(super) struct Placements(Arc<Mutex<BTreeMap<String, Placement>>>);

impl Placements {
    pub(super) fn get(&self, name: &str) -> Option<Placement> {
        locked(&self.0).get(name).cloned()
    }

    fn add(&self, name: String, placement: Placement) -> Result<()> {
        let mut known = locked(&self.0);
        match known.get(&name) {
            Some(earlier) if *earlier != placement => {
                bail!("{name} is asked for as {placement:?} and as {earlier:?}")
            }
            _ => known.insert(name, placement),
        };
        Ok(())
    }

    /// The first value of a tensor, or of this rank's part of it, in CPU memory.
    pub(super) fn initial(
        &self,
        name: &str,
        shape: &Shape,
        init: Init,
        seed: u64,
        dtype: DType,
        group: &Group,
    ) -> Result<Tensor> {
        let Some(Placement { whole, cut }) = self.get(name) else {
            return initial::value(name, shape, init, seed, dtype);
        };
        let whole = initial::value(name, &whole, init, seed, dtype)?;
        // A copy: a view would keep the rest in memory.
        group.part(&whole, cut)?.force_contiguous()
    }
}

impl<'a> Parts<'a> {
    pub(super) fn new(vb: VarBuilder<'a>, group: Group, placements: Placements) -> Self {
        Self { vb, group, placements }
    }

    /// A builder of tensors whose names begin with `prefix` and a dot.
    pub fn pp(&self, prefix: impl ToString) -> Self {
        Self { vb: self.vb.pp(prefix), ..self.clone() }
    }

    /// The ranks that the parts are for.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// This rank's part of the tensor `name`, which is of `shape` as a whole.
    ///
    /// `init` is about the whole: a distribution that depends on the number of inputs counts all of them.
    ///
    /// # Errors
    ///
    /// When the shape cannot be cut so: the message has the name and the numbers; or when the tensor was
    /// asked for with another cut before.
    pub fn cut(&self, shape: impl Into<Shape>, name: &str, init: Init, cut: Cut) -> Result<Tensor> {
        let (whole, path) = (shape.into(), self.path(name));
        let mut dims = whole.dims().to_vec();
        match dims.get_mut(cut.axis()) {
            Some(length) if *length == cut.features() => {
                if let Err(error) = cut.check(self.group.ranks()) {
                    bail!("{path}: {error}");
                }
                *length = cut.range(self.group.ranks(), self.group.rank()).len();
            }
            _ => bail!("{path} is {whole:?}, which {cut:?} does not fit"),
        }
        self.placements.add(path, Placement { whole, cut })?;
        self.vb.get_with_hints(dims, name, init)
    }

    /// The tensor `name`, of which every rank has all.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn whole(&self, shape: impl Into<Shape>, name: &str, init: Init) -> Result<Tensor> {
        self.vb.get_with_hints(shape, name, init)
    }

    fn path(&self, name: &str) -> String {
        match self.vb.prefix() {
            prefix if prefix.is_empty() => name.to_owned(),
            prefix => format!("{prefix}.{name}"),
        }
    }
}
