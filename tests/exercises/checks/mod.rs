//! The laws of each exercise, and the type of its answer.

#![allow(missing_docs, reason = "an exercise explains the type of its answer")]

pub mod ch01_cross_entropy;
pub mod ch01_pool_gradient;
pub mod ch02_allreduce;
pub mod ch02_hierarchical;
pub mod ch02_owners;
pub mod ch02_ring;
pub mod ch03_sampler;
pub mod ch04_accuracy;
pub mod ch04_batch_scaling;
pub mod ch04_diagnosis;
pub mod ch04_fused_allreduce;
pub mod ch04_learning_rate;
pub mod ch04_train_batch;
pub mod ch05_accumulate;
pub mod ch05_batch_norm_gap;
pub mod ch05_buckets;
pub mod ch05_overlap;
pub mod ch05_resume;
pub mod ch05_sync_batch_norm;
pub mod ch05_unequal_devices;
pub mod ch06_1f1b;
pub mod ch06_attention;
pub mod ch06_balance;
pub mod ch06_tensor_parallel;
pub mod ch06_two_stages;
pub mod ch07_fsdp;
pub mod ch07_prefetch;
pub mod ch07_recompute;
pub mod ch07_zero1;
pub mod ch08_predict;
