//! Stage 6: when the model does not fit on one device, the model itself is split.
//!
//! Each device holds some of the layers and sends its result to the next device. In the simplest form one device works
//! and all other devices wait. A batch that is cut into micro-batches keeps all devices busy, if each device does the right
//! thing at the right time. A *schedule* is this order of work. It exists before anything runs:
//!
//! ```
//! use model_parallel::{Cost, Kind, check};
//!
//! let schedule = Kind::OneFOneB.schedule(4, 8)?;
//! // Channels between stages hold one message.
//! let checked = check(schedule, 1)?;
//!
//! // One unit of time forward, two backward; a message takes none. A micro-batch's activations take one unit of memory.
//! let timeline = checked.simulate(&[Cost::UNITS; 4], 0.0)?;
//! assert_eq!(timeline.bubble(), 3.0 / 11.0);
//! assert_eq!(timeline.held(0).peak.activations, 4);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Read the modules in this order:
//!
//! | module | subject |
//! | --- | --- |
//! | [`layers`], [`networks`] | a model as a list of layers, of which a device builds its own |
//! | [`gpt`] | a GPT as a list of layers |
//! | [`instructions`] | a step is a list: the language |
//! | [`orders`] | lists: naive, GPipe, 1F1B, interleaved, zero-bubble |
//! | [`mod@check`] | the laws that every list keeps, and deadlock |
//! | [`simulate`], [`bytes`] | when everything happens, and the bytes that every stage holds |
//! | [`execute`] | executes any checked list, and trains with the numbers of one device |
//! | [`gantt`], [`pytorch`] | lists and their times as text, as a picture, and for PyTorch's runtime |
//! | [`partition`] | where to cut the model: the smallest largest stage |
//! | [`tensor_parallel`] | every device holds a part of every layer |
//! | [`mesh`] | replicas, stages and parts together |
//! | [`generate`] | a text that a trained GPT writes |
//! | [`runs`] | the runs of a program: this stage's and the next stage's |

pub mod bytes;
pub mod check;
pub mod execute;
pub mod gantt;
pub mod generate;
pub mod gpt;
pub mod instructions;
pub mod layers;
pub mod mesh;
pub mod networks;
pub mod orders;
pub mod partition;
pub mod pytorch;
pub mod runs;
pub mod simulate;
pub mod tensor_parallel;

pub use bytes::{Bytes, Cost};
pub use check::{Checked, check};
pub use execute::Executor;
pub use gpt::Gpt;
pub use instructions::{Action, Instruction, Schedule, UNBOUNDED};
pub use orders::Kind;
pub use simulate::Timeline;

/// A request that cannot be met, such as a cut or a schedule. The text names the numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);
