//! The learner's all-reduce between two hosts, and under chapter 4's training on four devices.

use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::host_link::HostLink;

use super::data_parallel::{measure, show_steps, step_with};
use super::prelude::*;
pub use crate::checks::ch02_hierarchical::Answer;

const HOSTS: usize = 2;
/// The devices of each host.
const EACH: usize = 2;
/// The bytes of the tensors of the table, and how often each is measured.
const SIZES: [(usize, u32); 3] = [(4_000, 50), (100_000, 20), (1_000_000, 10)];

/// A link from one host to the other, of so many MB/s.
fn new_link(megabytes: f64) -> Arc<HostLink> {
    HostLink::new(HOSTS, EACH, 1e6 * megabytes)
}

/// Shows bytes and times of a sum between hosts, and the training with such sums. Fails with the answer.
pub fn run(hierarchical: Answer) -> Run {
    let two_levels: Answer = |comm, each, tensor| two_levels(comm, each, tensor, Algorithm::Ring);
    let ring: Answer = |comm, _, tensor| comm.all_reduce(tensor, Algorithm::Ring);
    let names = ["yours", "two levels, ours", "ring, ours"];
    let (sums, plan, link) =
        ([hierarchical, two_levels, ring], DevicePlan::slices(HOSTS * EACH)?, new_link(20.0));
    let over_link = sums.map(|sum| {
        let link = Arc::clone(&link);
        move |rank: &Rank, tensor: &Tensor| sum(&link.connect(rank.into()), EACH, tensor)
    });
    let named = [0, 1, 2].map(|row| (names[row], &over_link[row] as _));
    let mut rows = measure(&plan, &SIZES, &named, |_, seconds| format!("{:.1}", 1e3 * seconds))?;
    let mut sent = Vec::new();
    for (row, sum) in rows.iter_mut().zip(sums) {
        let link = new_link(20.0);
        run_ranks(&plan, TIMEOUT, |rank| {
            let tensor = Tensor::ones(250_000, DType::F32, rank.device())?;
            sum(&link.connect(rank.into()), EACH, &tensor).map(drop)
        })?;
        sent.push(format!("{:.2}", link.sent().into_iter().max().unwrap_or(0) as f64 / 1e6));
        row.extend(sent.last().cloned());
    }
    let hosts = "hosts with 2 devices each; a host sends 20 MB/s to the other host";
    line(format_args!("{HOSTS} {hosts}"))?;
    table("ms", &["4 kB", "100 kB", "1 MB", "MB from a host"], rows)?;
    paragraph(format_args!(
        "In an all-reduce of 1 MB, a host sends {} MB with your code, {} MB with our two levels, and {} MB with a ring of all \
         ranks.\n",
        sent[0], sent[1], sent[2]
    ))?;
    // A training over the slow link would take minutes.
    line("The training has a link of 200 MB/s.")?;
    let link = new_link(200.0);
    let [yours, levels, _] = sums.map(|sum| {
        let link = Arc::clone(&link);
        move |rank: &Peer, tensors: &[Tensor]| {
            let comm = link.connect(rank.into());
            tensors.iter().map(|tensor| sum(&comm, EACH, tensor)).collect()
        }
    });
    show_steps(HOSTS * EACH, &step_with(&yours), &[(names[1], &step_with(&levels))])
}
