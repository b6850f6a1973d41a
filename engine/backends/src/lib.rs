//! MPI and NCCL behind stage 2's [`Communicator`](params_and_allreduce::communicator::Communicator).
//!
//! | module | content |
//! | --- | --- |
//! | `mpi` (a feature) | ranks as processes, on one machine or many |
//! | `nccl` (a feature) | NVIDIA's own collectives, between GPUs |
//!
//! Detecting the launcher that started a process is part of [`harness`].

