//! The times of a schedule, from the time that each part takes.
//!
//! A stage computes one thing at a time, in the order of its list. A message of a channel leaves when it is sent and
//! the message before it has arrived. With capacity 0 a message holds up both stages. With another capacity the sender
//! goes on at once, unless the channel is full.

use std::ops::Range;

use super::check::Checked;
use super::schedule::{Action, Instruction};
use super::timeline::{Timeline, run};
use crate::Refused;
use crate::partition::Cost;

// ANCHOR: predict
/// Predicts the timeline of a schedule, with the channels that the schedule was checked for.
///
/// `costs` has a cost for each stage, which its chunks share equally, or a cost for each part of the model, in order. A
/// message between two stages takes `message` seconds. Fails when the number of costs is another, or a time is negative or
/// not finite.
pub fn predict(checked: &Checked, costs: &[Cost], message: f64) -> Result<Timeline, Refused> {
    let schedule = checked.schedule();
    let (stages, found) = (schedule.stages(), costs.len());
    let parts = stages * schedule.chunks;
    if ![stages, parts].contains(&found) {
        return Err(Refused(format!("costs of {found} stages for a schedule of {stages}")));
    }
    let times =
        |it: &Cost| [it.forward, it.backward, it.backward_input, it.backward_weight, it.update];
    let mut seconds = costs.iter().flat_map(times).chain([message]);
    if let Some(wrong) = seconds.find(|seconds| !seconds.is_finite() || *seconds < 0.0) {
        return Err(Refused(format!("{wrong} s is no time that something takes")));
    }
    let share = (parts / found) as f64;
    let work = |stage: usize, Instruction { chunk, action }: Instruction| {
        let cost = &costs[schedule.part(stage, chunk) % found];
        match action {
            Action::Forward(_) => cost.forward / share,
            Action::Backward(_) => cost.backward / share,
            Action::BackwardInput(_) => cost.backward_input / share,
            Action::BackwardWeight(_) => cost.backward_weight / share,
            Action::Update => cost.update,
            _ => 0.0,
        }
    };
    let spans = run(schedule, checked.capacity, message, work);
    let spans = spans.expect("a checked schedule has no deadlock, however long the passes take");
    Ok(Timeline { stages, spans })
}
// ANCHOR_END: predict

// ANCHOR: shorten
/// Moves the borders of a cut, a layer at a time, as long as that makes the predicted step shorter.
///
/// [`cut`](crate::partition::cut) makes the largest part small. Under an interleaved schedule a device has several parts, and
/// their sum counts. `layers` has the cost of every layer. Fails as [`predict`] does. Panics when the cut has other layers.
pub fn shorten(
    checked: &Checked,
    layers: &[Cost],
    mut cut: Vec<Range<usize>>,
) -> Result<Vec<Range<usize>>, Refused> {
    let seconds =
        |cut: &[Range<usize>]| Ok(predict(checked, &Cost::of_parts(layers, cut), 0.0)?.makespan());
    let mut shortest = seconds(&cut)?;
    loop {
        let mut better = None;
        for border in 1..cut.len() {
            let begin = cut[border].start;
            for moved in [begin - 1, begin + 1] {
                let mut other = cut.clone();
                (other[border - 1].end, other[border].start) = (moved, moved);
                if other[border - 1..=border].iter().any(Range::is_empty) {
                    continue;
                }
                let seconds = seconds(&other)?;
                if seconds < shortest {
                    (shortest, better) = (seconds, Some(other));
                }
            }
        }
        match better {
            Some(other) => cut = other,
            None => return Ok(cut),
        }
    }
}
// ANCHOR_END: shorten

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition;
    use crate::pipeline::{Kind, UNBOUNDED, check};

    /// Layers whose passes take so long.
    fn layers(seconds: &[f64]) -> Vec<Cost> {
        let cost = |&it: &f64| Cost { forward: it, backward: 2.0 * it, ..Cost::default() };
        seconds.iter().map(cost).collect()
    }

    #[test]
    fn devices_of_interleaved_chunks_get_equal_work() {
        let schedule = Kind::Interleaved { chunks: 2 }.schedule(2, 8).expect("a schedule");
        let checked = check(schedule, UNBOUNDED).expect("a schedule without mistakes");
        // The default run's layers. The first stage gets 66 of 101, although no chunk can be smaller than 34.
        let layers = layers(&[15.0, 17.0, 17.0, 17.0, 17.0, 17.0, 1.0]);
        let uneven = vec![0..2, 2..3, 3..5, 5..7];
        let cut = shorten(&checked, &layers, uneven.clone()).expect("a cut");
        let of = |part: usize| layers[cut[part].clone()].iter().map(|it| it.forward).sum::<f64>();
        assert_eq!([of(0) + of(2), of(1) + of(3)], [49.0, 52.0], "{cut:?}");
        // A cut that no step makes shorter stays.
        assert_eq!(shorten(&checked, &layers, cut.clone()).expect("a cut"), cut);
        let seconds = |cut: &[Range<usize>]| {
            predict(&checked, &Cost::of_parts(&layers, cut), 0.0).expect("a step").makespan()
        };
        assert!(seconds(&cut) < 0.9 * seconds(&uneven), "{} {}", seconds(&cut), seconds(&uneven));
    }

    #[test]
    fn a_part_keeps_a_layer() {
        let checked = check(Kind::OneFOneB.schedule(2, 4).expect("a schedule"), UNBOUNDED);
        let checked = checked.expect("a schedule without mistakes");
        // The last layer is nearly everything.
        let layers = layers(&[1.0, 1.0, 1.0, 90.0]);
        let cut = shorten(&checked, &layers, vec![0..1, 1..4]).expect("a cut");
        assert_eq!(cut, partition::cut(&[1.0, 1.0, 1.0, 90.0], 2).expect("a cut"));
        assert_eq!(cut, [0..3, 3..4]);
        assert_eq!(shorten(&checked, &layers[..2], vec![0..1, 1..2]).expect("a cut"), [0..1, 1..2]);
    }
}
