//! The flags.

use std::path::PathBuf;

use clap::Parser;
use concise_wrapper::slow_link::parse_speed;
use cost_model::paper::{BATCH, Kind, LARGE, Ports};
use datasets::{CLASSES, PIXELS, SAMPLE};
use devices::SeveralDevices;
use harness::cli::whole;
use model_parallel::gpt::Gpt;
use model_parallel::layers::Layers;
use model_parallel::runs::sized_gpt;
use trainer::memory::NetworkSize;

/// Predict the bytes and the seconds of a training step under each strategy, run the step, and compare.
///
/// Without a GPU a device is a slice of the CPU.
#[derive(Debug, Parser)]
#[command(
    version,
    next_help_heading = "What to predict",
    before_help = "\
Examples:
  cost-model --gpt --fits 50MB
  cost-model --on-paper h100 --devices 1024 --ports host
"
)]
pub(crate) struct Arguments {
    /// A GPT instead of ten dense layers [default: 4x128x4x64; on paper 32x4096x32x2048]
    #[arg(long, value_name = "BLOCKSxWIDTHxHEADSxTOKENS", num_args = 0..=1, value_parser = parse_gpt)]
    gpt: Option<Option<Gpt>>,

    /// Samples of a batch, over all devices [default: 256; GPT 32; on paper 1024]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=1_000_000))]
    batch_size: Option<usize>,

    /// Samples of a micro-batch [default: on paper 1; else one micro-batch, and four in a pipeline]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=1_000_000))]
    pub(crate) micro_batch: Option<usize>,

    #[command(flatten)]
    pub(crate) devices: SeveralDevices,

    /// Slow the link between the devices down
    #[arg(long, help_heading = "Devices", value_name = "MB/S", value_parser = parse_speed)]
    pub(crate) slow_link: Option<f64>,

    /// Measure nothing: predict for machines that are not here
    #[arg(long, value_enum, ignore_case = true, help_heading = "On paper", value_name = "MACHINE",
          conflicts_with_all = ["device", "threads_per_device", "tf32", "slow_link", "run"])]
    pub(crate) on_paper: Option<Kind>,

    /// The owner of a port to other hosts
    #[arg(long, value_enum, help_heading = "On paper", default_value_t = Ports::Gpu, requires = "on_paper")]
    pub(crate) ports: Ports,

    /// Name the fastest plan that fits into 8GB, say [default: on paper the memory of a device]
    #[arg(long, help_heading = "Output", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) fits: Option<f64>,

    /// Run the steps, too; --run=false does not [default: only on 2 devices]
    #[arg(long, help_heading = "Output", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) run: Option<bool>,

    /// Write a line of JSON for each plan
    #[arg(long, help_heading = "Output", value_name = "FILE.jsonl")]
    pub(crate) metrics: Option<PathBuf>,
}

/// Parses a number of bytes.
fn parse_size(text: &str) -> Result<f64, &'static str> {
    let of_unit =
        |(unit, bytes): (&str, f64)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * bytes);
    let bytes = [("MB", 1e6), ("GB", 1e9), ("TB", 1e12)].into_iter().find_map(of_unit);
    let is_size = |bytes: &f64| bytes.is_finite() && *bytes > 0.0;
    bytes.filter(is_size).ok_or("a size is a number of MB, GB or TB, such as 8GB")
}

/// Parses the sizes of a GPT that reads bytes.
fn parse_gpt(text: &str) -> Result<Gpt, &'static str> {
    let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    match numbers.unwrap_or_default()[..] {
        [blocks @ 1..=1024, width @ 1..=65_536, heads @ 1..=65_536, context @ 1..=65_536]
            if width.is_multiple_of(heads) =>
        {
            Ok(Gpt { context, width, heads, blocks, ..Gpt::default() })
        }
        _ => Err(
            "a GPT has four sizes, such as 4x128x4x64: at most 1,024 blocks, and other sizes up to 65,536; the heads \
                  divide the width",
        ),
    }
}

impl Arguments {
    /// The GPT, if there is one. On paper it is a large one by default, and has a larger vocabulary.
    pub(crate) fn sizes(&self) -> Option<Gpt> {
        let Gpt { vocabulary, .. } = LARGE;
        match (self.on_paper, self.gpt) {
            (None, gpt) => gpt.map(Option::unwrap_or_default),
            (Some(_), gpt) => Some(gpt.flatten().map_or(LARGE, |gpt| Gpt { vocabulary, ..gpt })),
        }
    }

    /// The samples of a batch.
    pub(crate) fn batch(&self) -> usize {
        let usual = if self.gpt.is_some() { 32 } else { 256 };
        self.batch_size.unwrap_or(self.on_paper.map_or(usual, |_| BATCH))
    }

    /// The network, its sizes, and the shape of a sample.
    pub(crate) fn network(&self) -> anyhow::Result<(Layers, NetworkSize, Vec<usize>)> {
        if let Some(gpt) = self.sizes() {
            let (layers, size) = sized_gpt(&gpt)?;
            let (cause, advice) = ("--gpt".to_owned(), "a smaller --gpt");
            return Ok((layers, NetworkSize { cause, advice, ..size }, vec![gpt.context]));
        }
        let features = [&[PIXELS][..], &[512; 10], &[CLASSES]].concat();
        Ok((Layers::dense(&features)?, NetworkSize::dense(&features), SAMPLE.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("8GB", 8e9), ("0.5MB", 5e5), ("2TB", 2e12)] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for wrong in ["8", "GB", "-1GB", "0MB", "NaNGB", "infGB", "8gb"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_gpt_has_four_sizes() {
        let gpt = Gpt { blocks: 2, width: 16, heads: 4, context: 8, vocabulary: 256 };
        assert_eq!(parse_gpt("2x16x4x8"), Ok(gpt));
        for wrong in ["", "2x16x4", "2x16x4x8x1", "0x16x4x8", "ax16x4x8x2x", "2x16x4x-8"] {
            assert!(parse_gpt(wrong).is_err(), "{wrong}");
        }
    }
}
