//! Stage 6: when the model does not fit on one device, the model itself is split.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`tensor_parallel`] | every device holds a part of every layer |

pub mod tensor_parallel;
