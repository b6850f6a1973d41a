//! The learner's all-reduce between two hosts, and under chapter 4's training on four devices.

use std::error::Error;
use std::sync::Arc;

use candle_core::Tensor;
use devices::DevicePlan;
use harness::report::{Table, columns, line, paragraph};
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::bandwidth::{Sum, seconds};
use params_and_allreduce::communicator::{self, SharedCommunicator};
use params_and_allreduce::host_link::HostLink;
use params_and_allreduce::thread::run_ranks;

use super::Peer;
use super::data_parallel::{TIMEOUT, show_steps, step_with};

/// A rank, the number of ranks on each host, and the rank's tensor; the sum over all ranks.
pub type Answer = fn(&SharedCommunicator, usize, &Tensor) -> Result<Tensor, communicator::Error>;

const HOSTS: usize = 2;
/// The devices of each host.
const EACH: usize = 2;
/// Bytes per second from one host to the other.
const SPEED: f64 = 20e6;
/// The bytes of the tensors of the table, and how often each is measured.
const SIZES: [(usize, u32); 3] = [(4_000, 50), (100_000, 20), (1_000_000, 10)];

/// Shows bytes and times of a sum between hosts, and the training with such sums. Fails when the answer does.
pub fn run(hierarchical: Answer) -> Result<(), Box<dyn Error>> {
    let two_levels: Answer = |comm, each, tensor| two_levels(comm, each, tensor, Algorithm::Ring);
    let ring: Answer = |comm, _, tensor| comm.all_reduce(tensor, Algorithm::Ring);
    let rows = [("yours", hierarchical), ("two levels, ours", two_levels), ("ring, ours", ring)];
    show_link(&rows)?;
    let link = HostLink::new(HOSTS, EACH, SPEED);
    let [yours, levels, ring] = rows.map(|(_, sum)| {
        let link = Arc::clone(&link);
        move |rank: &Peer, tensors: &[Tensor]| {
            let comm = link.connect(rank.into());
            tensors.iter().map(|tensor| sum(&comm, EACH, tensor)).collect()
        }
    });
    let (yours, levels, ring) = (step_with(&yours), step_with(&levels), step_with(&ring));
    let ours = [(rows[1].0.to_owned(), &levels as _), (rows[2].0.to_owned(), &ring as _)];
    show_steps(HOSTS * EACH, &yours, &ours, 1)
}

/// Prints what a host sends to the other host in an all-reduce of 1 MB, and the times of several sizes.
fn show_link(rows: &[(&str, Answer)]) -> Result<(), Box<dyn Error>> {
    let (plan, new_link) =
        (DevicePlan::slices(HOSTS * EACH)?, || HostLink::new(HOSTS, EACH, SPEED));
    line(format_args!(
        "{HOSTS} hosts with {EACH} devices each; a host sends 20 MB/s to the other host"
    ))?;
    let (mut table, link) = (Table::new("ms").column("MB from a host", 0), new_link());
    for size in ["4 kB", "100 kB", "1 MB"] {
        table = table.column(size, 0);
    }
    let times = run_ranks(&plan, TIMEOUT, |rank| {
        let comm = &link.connect(rank.into());
        let sum = |&(_, sum): &(_, Answer)| -> Sum<'_> {
            Box::new(move |tensor| {
                let sum = sum(comm, EACH, tensor)?;
                // The rows take turns with one tensor, so all of them need its shape.
                Ok(if sum.shape() == tensor.shape() { sum } else { tensor.clone() })
            })
        };
        let rows: Vec<_> = rows.iter().map(sum).collect();
        let column = |(bytes, runs)| seconds(&**comm, &rows, bytes, Some(runs));
        SIZES.into_iter().map(column).collect::<Result<Vec<_>, _>>()
    })?;
    let mut sent = Vec::new();
    for (row, (name, sum)) in rows.iter().enumerate() {
        let link = new_link();
        run_ranks(&plan, TIMEOUT, |rank| {
            let comm = link.connect(rank.into());
            let tensor = Tensor::ones(250_000, candle_core::DType::F32, comm.device())?;
            sum(&comm, EACH, &tensor).map(drop)
        })?;
        sent.push(format!("{:.2}", link.sent().into_iter().max().unwrap_or(0) as f64 / 1e6));
        let times = times[0].iter().map(|column| {
            column[row].map_or("–".to_owned(), |seconds| format!("{:.1}", 1e3 * seconds))
        });
        table.row([(*name).to_owned(), sent[row].clone()].into_iter().chain(times));
    }
    line(table.text(columns()))?;
    paragraph(format_args!(
        "In an all-reduce of 1 MB, a host sends {} MB with your code, {} MB with our two levels, and {} MB with a ring of all \
         ranks.",
        sent[0], sent[1], sent[2]
    ))?;
    Ok(line("")?)
}
