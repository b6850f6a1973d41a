//! A kernel, its arguments, and a machine that runs it.

#![cfg_attr(
    not(any(test, feature = "cuda")),
    expect(dead_code, reason = "a build without CUDA has no machine that would look at a launch")
)]

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Result, bail};

/// Threads of a block, in every launch: a power of two, as blocks add up in a tree.
pub(crate) const THREADS: usize = 256;

/// A thread that works element by element is given no more blocks than this to share its work with.
const MOST_BLOCKS: usize = 4096;

/// Elements of a tensor, at most: kernels count in 32 bits, and may count one round too far.
const MOST_ELEMENTS: usize = 1 << 31;

/// The files of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    BatchNorm,
    Bias,
    CrossEntropy,
    Pooling,
    Relu,
    Update,
}

impl Source {
    #[cfg(test)]
    pub(super) const ALL: [Self; 6] =
        [Self::BatchNorm, Self::Bias, Self::CrossEntropy, Self::Pooling, Self::Relu, Self::Update];

    /// The kernels, without what they all begin with.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::BatchNorm => include_str!("kernels/batch_norm.cu"),
            Self::Bias => include_str!("kernels/bias.cu"),
            Self::CrossEntropy => include_str!("kernels/cross_entropy.cu"),
            Self::Pooling => include_str!("kernels/pooling.cu"),
            Self::Relu => include_str!("kernels/relu.cu"),
            Self::Update => include_str!("kernels/update.cu"),
        }
    }

    /// The names of the kernels.
    #[cfg(test)]
    pub(super) fn kernels(self) -> impl Iterator<Item = &'static str> {
        let after = self.text().split("\nKERNEL ").skip(1);
        after.filter_map(|text| text.split('(').next())
    }
}

/// What all kernels begin with.
pub(super) const PRELUDE: &str = include_str!("kernels/prelude.cuh");

/// A kernel for elements of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(super) source: Source,
    pub(super) name: &'static str,
    pub(super) dtype: DType,
}

/// The macros that a compiler of kernels is given: how elements are stored, and threads of a block.
///
/// # Errors
///
/// For a type that there are no kernels for.
pub(super) fn definitions(dtype: DType, threads: usize) -> Result<[String; 2]> {
    let stored = match dtype {
        DType::F64 => "STORED_F64",
        DType::F32 => "STORED_F32",
        DType::BF16 => "STORED_BF16",
        other => bail!("there are kernels for f64, f32 and bf16, not for {}", other.as_str()),
    };
    Ok([format!("-D{stored}"), format!("-DTHREADS={threads}")])
}

/// Memory that a kernel reads: a contiguous tensor.
pub(crate) struct Operand<'a, S> {
    pub(crate) storage: &'a S,
    /// Elements of the storage before the tensor's first.
    pub(super) start: usize,
    pub(super) elements: usize,
}

// Derived, these would ask the same of the storage.
impl<S> Clone for Operand<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Operand<'_, S> {}

impl<'a, S: BackendStorage> Operand<'a, S> {
    /// The memory of a tensor.
    ///
    /// # Errors
    ///
    /// When it is not contiguous.
    pub(crate) fn new(storage: &'a S, layout: &Layout) -> Result<Self> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a kernel needs contiguous tensors, got strides {:?}", layout.stride());
        };
        Ok(Self { storage, start, elements: end - start })
    }

    /// All of some storage.
    pub(crate) fn whole(storage: &'a S, elements: usize) -> Self {
        Self { storage, start: 0, elements }
    }

    pub(super) fn dtype(&self) -> DType {
        self.storage.dtype()
    }
}

/// One argument of a kernel.
pub(crate) enum Argument<'a, S> {
    /// Memory that is read.
    Read(Operand<'a, S>),
    /// Memory that is written to, from this element on.
    Write(&'a mut S, usize),
    /// A whole number: a size, or a yes (1) or no (0).
    Count(usize),
    /// A number.
    Number(f64),
}

/// A kernel with its arguments, one after the other.
pub(crate) struct Launch<'a, S> {
    pub(super) kernel: Kernel,
    pub(super) arguments: Vec<Argument<'a, S>>,
    /// An operand that the kernel was not written for.
    mismatch: Option<String>,
}

impl<'a, S: BackendStorage> Launch<'a, S> {
    pub(super) fn new(source: Source, name: &'static str, dtype: DType) -> Self {
        Self { kernel: Kernel { source, name, dtype }, arguments: Vec::new(), mismatch: None }
    }

    fn and(mut self, argument: Argument<'a, S>) -> Self {
        self.arguments.push(argument);
        self
    }

    pub(super) fn count(self, count: usize) -> Self {
        self.and(Argument::Count(count))
    }

    /// A yes or no.
    pub(super) fn flag(self, yes: bool) -> Self {
        self.count(yes.into())
    }

    pub(super) fn number(self, number: f64) -> Self {
        self.and(Argument::Number(number))
    }

    /// So many elements of the kernel's type.
    pub(super) fn read(self, operand: Operand<'a, S>, elements: usize) -> Self {
        let dtype = self.kernel.dtype;
        self.read_as(dtype, operand, elements)
    }

    /// So many elements of a type that the kernel has there whatever its own is.
    pub(super) fn read_as(
        mut self,
        dtype: DType,
        operand: Operand<'a, S>,
        elements: usize,
    ) -> Self {
        let found = (operand.dtype(), operand.elements);
        if found != (dtype, elements) {
            let name = self.kernel.name;
            self.mismatch.get_or_insert_with(|| {
                format!(
                    "{name}: expected {elements} elements of {dtype:?}, got {} of {:?}",
                    found.1, found.0
                )
            });
        }
        self.and(Argument::Read(operand))
    }

    /// A result, from its first element on.
    pub(super) fn write(self, room: &'a mut S) -> Self {
        self.write_from(room, 0)
    }

    /// What is changed in place, from this element on.
    pub(super) fn write_from(self, storage: &'a mut S, start: usize) -> Self {
        self.and(Argument::Write(storage, start))
    }

    /// Makes sure that the kernel finds what it was written for.
    fn check(&self) -> Result<()> {
        let sizes = self.arguments.iter().map(|argument| match argument {
            Argument::Read(operand) => operand.elements,
            Argument::Count(count) => *count,
            Argument::Write(..) | Argument::Number(_) => 0,
        });
        match (&self.mismatch, sizes.max()) {
            (Some(mismatch), _) => bail!("{mismatch}"),
            (None, Some(size)) if size > MOST_ELEMENTS => {
                bail!(
                    "{}: kernels count up to 2³¹ elements, and there are {size}",
                    self.kernel.name
                )
            }
            _ => Ok(()),
        }
    }

    /// What kernels that go through images channel by channel begin with.
    pub(super) fn channels(self, sizes: Channels) -> Self {
        let Channels { images, channels, plane } = sizes;
        self.count(images).count(channels).count(plane).count(sizes.parts())
    }
}

/// Where kernels run.
pub(crate) trait Machine {
    /// The memory of its tensors.
    type Storage: BackendStorage;

    /// Memory for a result, with anything in it: a kernel has to write every element.
    ///
    /// # Errors
    ///
    /// When there is none.
    fn room(&self, elements: usize, dtype: DType) -> Result<Self::Storage>;

    /// Runs a kernel on so many blocks, behind everything that was launched before; it need not wait until it
    /// is done.
    ///
    /// # Errors
    ///
    /// When an operand is of another type or size than the kernel has, or larger than it can count; or when the
    /// kernel cannot be compiled or started.
    fn run(&self, launch: Launch<'_, Self::Storage>, blocks: usize) -> Result<()> {
        launch.check()?;
        self.start(launch, blocks)
    }

    /// The same for a launch that was checked.
    ///
    /// # Errors
    ///
    /// When the kernel cannot be compiled or started.
    fn start(&self, launch: Launch<'_, Self::Storage>, blocks: usize) -> Result<()>;
}

/// Blocks for `n` elements, each a thread's.
pub(super) fn blocks_of(n: usize) -> usize {
    n.div_ceil(THREADS).clamp(1, MOST_BLOCKS)
}

/// Images `[images, channels, plane]` for kernels that go through them channel by channel.
///
/// The values of a channel are cut into parts, each a block's: so a GPU has work for all its processors even where
/// channels are few, and yet a block has enough to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    pub(crate) plane: usize,
}

impl Channels {
    /// Values of a channel that a block is given, sixteen for each thread.
    const PART: usize = 16 * THREADS;

    /// Parts of a channel.
    pub(super) fn parts(&self) -> usize {
        (self.images * self.plane).div_ceil(Self::PART).max(1)
    }

    pub(super) fn blocks(&self) -> usize {
        self.channels * self.parts()
    }

    pub(crate) fn elements(&self) -> usize {
        self.images * self.channels * self.plane
    }
}
