//! Which of a convolution's products is asked for.

/// Which of a convolution's three products, of which operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    /// The output, `[B, O, H', W']`, of the input, `[B, C, H, W]`, and the kernel, `[O, C, KH, KW]`.
    Output,
    /// The same, for a rectifier: what sees nothing but zeros is zero, never nearly zero, as its slope changes there.
    OutputForRelu,
    /// The gradient of the input, from the kernel and the output's gradient.
    InputGradient,
    /// The gradient of the kernel, from the input and the output's gradient; zeros without images.
    WeightGradient,
}
