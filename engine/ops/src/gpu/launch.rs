//! A kernel with its arguments, which are checked before it runs.

#![cfg_attr(
    not(any(test, feature = "cuda")),
    expect(dead_code, reason = "a build without CUDA has no machine that would look at it")
)]

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Result, bail};

use super::blocks::{Channels, VECTOR};
use super::kernel::{Elements, Kernel, Source};

/// Elements of a tensor, at most: kernels count in 32 bits, and may count one round too far.
const MOST_ELEMENTS: usize = 1 << 31;

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

    /// Elements of the vectors that it can be read in.
    pub(super) fn vector(&self) -> usize {
        let whole = [self.start, self.elements].iter().all(|count| count.is_multiple_of(VECTOR));
        if whole { VECTOR } else { 1 }
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
        let elements = Elements { dtype, vector: 1 };
        Self { kernel: Kernel { source, name, elements }, arguments: Vec::new(), mismatch: None }
    }

    /// For vectors of so many elements.
    pub(super) fn by_vectors(mut self, vector: usize) -> Self {
        self.kernel.elements.vector = vector;
        self
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
        let dtype = self.kernel.elements.dtype;
        self.read_as(dtype, operand, elements)
    }

    /// The same for a kernel that reads them in vectors.
    pub(super) fn read_vectors(mut self, operand: Operand<'a, S>, elements: usize) -> Self {
        let Kernel { name, elements: Elements { vector, .. }, .. } = self.kernel;
        if !operand.start.is_multiple_of(vector) {
            self.mismatch.get_or_insert_with(|| {
                format!("{name}: vectors of {vector} cannot begin at element {}", operand.start)
            });
        }
        self.read(operand, elements)
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
        self.and(Argument::Write(room, 0))
    }

    /// Two results, one after the other.
    pub(super) fn write_both(self, [first, second]: [&'a mut S; 2]) -> Self {
        self.write(first).write(second)
    }

    /// What is changed in place, from this element on: numbers of the kernel's type.
    pub(super) fn change(self, storage: &'a mut S, start: usize) -> Self {
        let dtype = self.kernel.elements.dtype;
        self.change_as(dtype, storage, start)
    }

    /// The same for a type that the kernel has there whatever its own is.
    pub(super) fn change_as(mut self, dtype: DType, storage: &'a mut S, start: usize) -> Self {
        let found = storage.dtype();
        if found != dtype {
            let name = self.kernel.name;
            self.mismatch.get_or_insert_with(|| {
                format!("{name}: expected {dtype:?} to be changed, got {found:?}")
            });
        }
        self.and(Argument::Write(storage, start))
    }

    /// Makes sure that the kernel finds what it was written for.
    pub(super) fn check(&self) -> Result<()> {
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

    /// What kernels that go through images channel by channel begin with; a plane's size is counted in vectors.
    pub(super) fn channels(self, sizes: Channels) -> Self {
        let Channels { images, channels, plane } = sizes;
        let plane = plane / self.kernel.elements.vector;
        self.count(images).count(channels).count(plane).count(sizes.parts())
    }
}
