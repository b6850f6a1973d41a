//! The parts that all programs of the course share: flags, exit codes, progress, files of results, Ctrl-C.
//!
//! This crate does not use candle, so it builds in seconds.
//!
//! | module | content |
//! | --- | --- |
//! | [`cli`] | command lines, error messages and exit codes |
//! | [`records`] | measurements of a training loop: sums of a batch, a record of an epoch, the state of a run |
//! | [`report`] | progress, metrics, plots, traces; files that are never half-written |
//! | [`recording`] | a hash of every tensor in every step, and the first entry in which two runs part |
//! | [`interrupt`] | Ctrl-C: all devices stop after the same step |
//! | [`random`] | random numbers that depend on a name and a seed |
//! | [`machine`] | memory, cores, processor and folders of this machine, and the limits on this process |
//! | [`images`] | reads a folder with the four files of Fashion-MNIST, and checks everything |
//! | [`launcher`] | the processes that mpirun, srun or torchrun have started together |
//! | [`load`] | notices when other programs use the cores |
//! | [`stopwatch`] | time without the time for which the program was stopped |
//! | [`statistics`] | the median, the mean and the standard deviation of measurements; the chance in a share of samples |
//! | [`verdict`] | what times, accuracies and weights allow to conclude, and the doubts |
//! | [`lock`] | locks that survive a panic |
//! | `allocator` | keeps freed memory for the next step, and ends a process without memory |

mod allocator;
pub mod cli;
pub mod images;
pub mod interrupt;
pub mod launcher;
pub mod load;
pub mod lock;
pub mod machine;
pub mod random;
pub mod recording;
pub mod records;
pub mod report;
pub mod statistics;
pub mod stopwatch;
pub mod verdict;
