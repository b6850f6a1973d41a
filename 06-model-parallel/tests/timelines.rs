//! Timelines, worked out by hand.

use model_parallel::gantt::chart;

use crate::prelude::*;

const STAGE: Cost = Cost { update: 0.25, ..Cost::UNITS };

/// When a stage begins and ends everything that it does.
fn times(timeline: &Timeline, stage: usize) -> Vec<(Action, f64, f64)> {
    timeline.of_stage(stage).map(|span| (span.instruction.action, span.start, span.end)).collect()
}

#[test]
fn a_message_takes_its_time_and_the_sender_goes_on() {
    use Action::{Backward, Forward, RecvActivation, RecvGradient};
    use Action::{SendActivation, SendGradient, Update};
    let checked = check(Kind::GPipe.schedule(2, 2).unwrap(), 1).unwrap();
    let timeline = checked.simulate(&[STAGE; 2], 1.5).unwrap();
    assert_eq!(
        times(&timeline, 0),
        [
            (Forward(0), 0.0, 1.0),
            (SendActivation(0), 1.0, 1.0),
            (Forward(1), 1.0, 2.0),
            // The channel is full until the other stage has taken the first one, at 2.5.
            (SendActivation(1), 2.0, 2.5),
            (RecvGradient(0), 2.5, 8.5),
            (Backward(0), 8.5, 10.5),
            (RecvGradient(1), 10.5, 10.5),
            (Backward(1), 10.5, 12.5),
            (Update, 12.5, 12.75),
        ]
    );
    assert_eq!(
        times(&timeline, 1),
        [
            (RecvActivation(0), 0.0, 2.5),
            (Forward(0), 2.5, 3.5),
            (RecvActivation(1), 3.5, 4.0),
            (Forward(1), 4.0, 5.0),
            (Backward(0), 5.0, 7.0),
            (SendGradient(0), 7.0, 7.0),
            (Backward(1), 7.0, 9.0),
            (SendGradient(1), 9.0, 9.0),
            (Update, 9.0, 9.25),
        ]
    );
    assert_eq!(timeline.makespan(), 12.75);
    assert_eq!((timeline.busy(0), timeline.busy(1)), (6.25, 6.25));
    assert_eq!(timeline.bubble(), 1.0 - 12.5 / 25.5);
}

#[test]
fn messages_of_a_channel_are_one_after_the_other_on_their_way() {
    let checked = check(Kind::GPipe.schedule(2, 3).unwrap(), 3).unwrap();
    let timeline = checked.simulate(&[STAGE; 2], 5.0).unwrap();
    let received = |timeline: &Timeline| -> Vec<f64> {
        let all = times(timeline, 1).into_iter();
        all.filter(|(a, ..)| matches!(a, Action::RecvActivation(_))).map(|(.., end)| end).collect()
    };
    assert_eq!(received(&timeline), [6.0, 11.0, 16.0]);
}

#[test]
fn a_rendezvous_holds_up_both() {
    let checked = check(Kind::GPipe.schedule(2, 2).unwrap(), 0).unwrap();
    let timeline = checked.simulate(&[STAGE; 2], 1.5).unwrap();
    assert_eq!(
        times(&timeline, 0)[..5],
        [
            (Action::Forward(0), 0.0, 1.0),
            (Action::SendActivation(0), 1.0, 2.5),
            (Action::Forward(1), 2.5, 3.5),
            (Action::SendActivation(1), 3.5, 5.0),
            // Offered at 8, when the other stage is back from backward.
            (Action::RecvGradient(0), 5.0, 9.5),
        ]
    );
    assert_eq!(times(&timeline, 1)[2], (Action::RecvActivation(1), 3.5, 5.0));
}

#[test]
fn a_slow_stage_holds_up_all() {
    let checked = check(Kind::OneFOneB.schedule(3, 6).unwrap(), 1).unwrap();
    let slow = Cost { forward: 4.0, ..STAGE };
    let timeline = checked.simulate(&[STAGE, slow, STAGE], 0.0).unwrap();
    // Stage 1 begins after a forward pass of stage 0, is never idle, and ends before a backward of it.
    let slow = 6.0 * (4.0 + 2.0);
    assert_eq!(timeline.busy(1), slow + 0.25);
    assert!(timeline.makespan() >= 1.0 + slow + 2.0 + 0.25, "{}", timeline.makespan());
}

#[test]
fn micro_batches_kept_after_each_pass() {
    let schedule = Kind::ZbH1.schedule(2, 2).unwrap();
    let timeline = check(schedule, 1).unwrap().simulate(&[Cost::UNITS; 2], 0.0).unwrap();
    let passes = timeline.of_stage(0).filter(|span| span.instruction.action.computes());
    // F0 F1 B0 W0 B1 W1, and the update.
    let kept = passes.map(|span| span.held.activations);
    assert_eq!(kept.collect::<Vec<_>>(), [1, 2, 2, 2, 1, 1, 0]);
}

/// A predicted and a measured timeline are one type: the measured one begins at any time.
#[test]
fn a_timeline_is_data_and_may_begin_at_any_time() {
    let checked = check(Kind::OneFOneB.schedule(3, 4).unwrap(), 1).unwrap();
    let predicted = checked.simulate(&[STAGE; 3], 0.5).unwrap();
    let mut measured = predicted.clone();
    for span in &mut measured.spans {
        span.start += 1024.0;
        span.end += 1024.0;
    }
    assert_eq!(measured.start(), 1024.0);
    assert_eq!(measured.makespan(), predicted.makespan());
    assert_eq!(measured.bubble(), predicted.bubble());
    assert_eq!(measured.drawing(0.5, 80), predicted.drawing(0.5, 80));
    let json = serde_json::to_string(&measured).unwrap();
    assert!(json.contains(r#"{"stage":0,"unit":0,"do":"forward","micro_batch":0,"start":1024.0,"#));
    assert_eq!(serde_json::from_str::<Timeline>(&json).unwrap(), measured);
}

/// As many stages and micro-batches as `--draw` has room for, and then the numbers of a wide table.
#[test]
fn large_timelines_are_drawn_at_once_and_in_columns() {
    let checked = check(Kind::OneFOneB.schedule(150, 150).unwrap(), 1).unwrap();
    let timeline = checked.simulate(&[Cost::UNITS; 150], 0.0).unwrap();
    let started = Instant::now();
    let drawing = timeline.drawing(1.0, usize::MAX);
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
    let started = Instant::now();
    chart("", None, &[("1F1B", [&timeline])]);
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    let lines: Vec<Vec<char>> = drawing.lines().map(|line| line.chars().collect()).collect();
    assert_eq!(lines.len(), 150);
    let (names, column) = ("stage 149   ".len(), "F149 ".len());
    for (stage, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("stage {stage}").chars().collect::<Vec<_>>()[..]));
        // One after the other, and each begins where its column does.
        let cells: Vec<String> = line[names..].chunks(column).map(String::from_iter).collect();
        assert!(cells.iter().all(|cell| !cell.starts_with(' ')), "{cells:?}");
        assert_eq!(cells[stage].trim_end(), "F0");
        assert_eq!(cells.iter().filter(|cell| cell.trim_end() == "B149").count(), 2);
    }
}

#[test]
fn nothing_takes_no_time() {
    let timeline = Timeline { stages: 2, spans: Vec::new() };
    assert_eq!((timeline.makespan(), timeline.bubble(), timeline.busy(1)), (0.0, 0.0, 0.0));
}

#[test]
fn costs_that_make_no_sense_are_refused() {
    let checked = check(Kind::OneFOneB.schedule(3, 4).unwrap(), 1).unwrap();
    let refused = checked.simulate(&[STAGE; 2], 0.0).unwrap_err();
    assert_eq!(refused.to_string(), "costs of 2 units for a schedule of 3");
    for time in [-1.0, f64::NAN, f64::INFINITY] {
        let of_update = Cost { update: time, ..STAGE };
        for (last, message) in [(STAGE, time), (of_update, 0.0)] {
            let told = checked.simulate(&[STAGE, STAGE, last], message).unwrap_err().to_string();
            assert_eq!(told, format!("{time} s is no time that something takes"));
        }
    }
}
