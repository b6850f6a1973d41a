//! The memory that a run is estimated to take, beside the memory that it takes.

#![cfg(target_os = "linux")]

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use candle_core::DType;
use devices::DevicePlan;
use trainer::memory::{Footprint, NetworkSize, RunSize};

/// The highest resident memory of the program in a run of one epoch, in bytes.
fn peak(flags: &[String]) -> f64 {
    let mut program = Command::new(env!("CARGO_BIN_EXE_model-parallel"));
    program.args(["--data=synthetic", "--epochs=1", "--device=cpu"]).args(flags);
    let mut child = program.stdout(Stdio::null()).spawn().expect("the program starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let kibibytes = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(number) = kibibytes.and_then(|text| text.trim().strip_suffix(" kB")) {
            peak = 1024.0 * number.parse::<f64>().expect("a number");
        }
        if let Some(ended) = child.try_wait().expect("the program is a child") {
            assert!(ended.success(), "{flags:?}");
            return peak;
        }
        sleep(Duration::from_millis(2));
    }
}

/// The peaks hold the memory of data, weights and activations in other proportions each time.
#[test]
fn an_estimate_is_near_the_peak_of_a_run() {
    let dense = |widths: &[usize]| NetworkSize::dense(&[&[784], widths, &[10]].concat());
    let (resnet, stack) = (NetworkSize::resnet18, dense(&[512; 6]));
    for (flags, network, devices, batch) in [
        ("--model=lenet", NetworkSize::lenet(), 1, 256),
        ("--model=lenet", NetworkSize::lenet(), 1, 4096),
        ("--model=dense", stack.clone(), 1, 1024),
        ("--model=dense", stack, 1, 8192),
        ("--widths=2048,2048", dense(&[2048, 2048]), 1, 64),
        ("--widths=2048,2048 --schedule=1f1b", dense(&[2048, 2048]), 2, 64),
        ("--model=resnet18 --width=4", resnet(4), 1, 128),
        ("--model=resnet18 --width=4", resnet(4), 1, 512),
        ("--model=resnet18 --width=16", resnet(16), 1, 64),
        ("--model=resnet18 --width=16", resnet(16), 1, 256),
    ] {
        let plan = DevicePlan::slices(devices).expect("slices");
        let mut footprint = Footprint::new(network, &plan);
        if devices == 2 {
            // One device with a whole batch, one with micro-batches, and the pipeline.
            footprint.weights = 2 + 4 * 3;
        }
        let images = (2 * batch, 300);
        let run = RunSize { batch_size: batch, images, context: None, dtype: DType::F32 };
        let estimate = footprint.estimate(run).total();
        let sizes = format!(
            "--devices={devices} --threads-per-device=1 --batch-size={batch} --train-size={} --test-size={}",
            images.0, images.1
        );
        let flags: Vec<_> = flags.split(' ').chain(sizes.split(' ')).map(str::to_owned).collect();
        let ratio = estimate / peak(&flags);
        println!("{ratio:.2} {flags:?}");
        assert!((0.6..1.6).contains(&ratio), "{ratio:.2} {flags:?}");
    }
}
