//! Sentences about measured steps: the conclusions for a reader.

use cost_model::all_reduce::Way;
use cost_model::record::{How, Step};
use cost_model::training::Sum;
use harness::report::{counted, seconds, thousands};
use harness::statistics::median;

/// Times within this factor count as equal: repeated measurements differ by as much.
pub(crate) const EQUAL: f64 = 1.05;

/// An error above this, in per cent, has a cause that is not in the model.
const FAR: f64 = 25.0;

/// The images of Fashion-MNIST's epoch.
const EPOCH: usize = 60_000;

/// Names the fastest algorithms of one number of devices over both links, and how many times as fast as one device they are.
///
/// `Fastest on 2 devices: ring, 1.92 times one device; over the slow link 1.23 times.`
pub(crate) fn times_of_one(one: f64, steps: &[Step]) -> String {
    let [memory, slow] = [false, true].map(|slow| over(steps, slow));
    let [near, far] = [&memory, &slow].map(|steps| one / least(steps));
    let [name, far_name] = [&memory, &slow].map(|steps| fastest(steps));
    let devices = memory.first().map_or(0, |step| step.devices);
    let far_name = if far_name == name { String::new() } else { format!("{far_name}, ") };
    let mut text = format!(
        "Fastest on {}: {name}, {near:.2} times one device; over the slow link {far_name}{far:.2} times.",
        counted(devices, "device")
    );
    text += match (near * EQUAL < 1.0, far * EQUAL < 1.0) {
        (true, true) => " Both are slower than one device.",
        (true, false) => " In memory, one device is faster.",
        (false, true) => " Over the slow link, one device is faster.",
        (false, false) => "",
    };
    text
}

/// Says which number of devices is fastest for a model, and how far its predictions are off. `shared` are the numbers of
/// devices that share cores.
pub(crate) fn of_model(steps: &[Step], shared: &[usize]) -> String {
    let Some(first) = steps.first() else { return String::new() };
    let most = steps.iter().map(|step| step.devices).max().unwrap_or(1);
    let measured = |step: &Step| step.measured;
    let (best, time) = best_count(steps, false, measured);
    let epoch = format!(
        "An epoch of {} images takes {} s.",
        thousands(EPOCH),
        seconds(time * EPOCH.div_ceil(first.batch_size) as f64)
    );
    let times = format!("{:.2} times one device", first.measured / time);
    let devices = counted(best, "device");
    let mut further = steps.iter().map(|step| step.devices).filter(|&devices| devices > best);
    let more = match further.all(|devices| shared.contains(&devices)) {
        true => "more devices only share the cores",
        false => "more devices do not help",
    };
    let mut text = format!("{}: ", first.model);
    text += &match best {
        1 if most == 1 => format!("only one device was measured. {epoch}"),
        1 => format!("one device is fastest; {more}. {epoch}"),
        _ if best == most => format!("{devices} are fastest, {times}. {epoch}"),
        _ => format!("{devices} are fastest, {times}; {more}. {epoch}"),
    };
    if most > 1 {
        text += &match best_count(steps, true, measured) {
            (1, _) => " Over the slow link, one device is fastest.".to_owned(),
            (slow, time) => format!(
                " Over the slow link, the best are {slow} devices, {:.2} times one device.",
                first.measured / time
            ),
        };
    }
    format!("{text}\n{}", predictions(steps))
}

/// Says how far predictions are off, and whether they find the same best number of devices.
fn predictions(steps: &[Step]) -> String {
    let percent = |step: &Step| 100.0 * step.error();
    let Some(worst) = worst(steps) else { return String::new() };
    let mut text = match steps {
        [step] => format!("The prediction is off by {} %.", error(step)),
        _ => format!(
            "Predictions: half are off by at most {:.0} %, and the worst by {} %: {}.",
            median(steps.iter().map(|step| percent(step).abs())),
            error(worst),
            worst.place()
        ),
    };
    if percent(worst).abs() > FAR {
        text += " So large an error often means that other programs used the cores.";
    }
    if steps.iter().any(|step| step.devices > 1) {
        let count = |of: fn(&Step) -> f64| best_count(steps, false, of).0;
        let (predicted, measured) = (count(|it| it.predicted.seconds), count(|it| it.measured));
        let verb = if predicted == 1 { "is" } else { "are" };
        let too = if predicted == measured { ", too" } else { "" };
        let devices = counted(predicted, "device");
        text += &format!(" By the predictions, {devices} {verb} fastest{too}.");
    }
    text
}

/// `+4`: the error of a prediction in per cent, without the sign of a zero.
pub(crate) fn error(step: &Step) -> String {
    match (100.0 * step.error()).round() {
        0.0 => "0".to_owned(),
        percent => format!("{percent:+}"),
    }
}

/// The step with the largest error.
pub(crate) fn worst(steps: &[Step]) -> Option<&Step> {
    let error = |step: &Step| step.error().abs();
    steps.iter().max_by(|a, b| error(a).total_cmp(&error(b)))
}

/// The smallest number of devices that is about as fast as the fastest over a link, and its time.
fn best_count(steps: &[Step], slow: bool, of: impl Fn(&Step) -> f64) -> (usize, f64) {
    let steps = || steps.iter().filter(|step| step.how.is_none_or(|how| how.slow == slow));
    let least = |devices: Option<usize>| {
        let times = steps().filter(|step| devices.is_none_or(|it| it == step.devices)).map(&of);
        times.fold(f64::INFINITY, f64::min)
    };
    let near = steps().filter(|step| of(step) <= EQUAL * least(None));
    let count = near.map(|step| step.devices).min().unwrap_or(1);
    (count, least(Some(count)))
}

fn over(steps: &[Step], slow: bool) -> Vec<&Step> {
    steps.iter().filter(|step| step.how.is_some_and(|how| how.slow == slow)).collect()
}

fn least(steps: &[&Step]) -> f64 {
    steps.iter().map(|step| step.measured).fold(f64::INFINITY, f64::min)
}

/// Names the algorithms that are about as fast as the fastest: `ring`, `tree or ring with overlap`, `any algorithm`.
fn fastest(steps: &[&Step]) -> String {
    let sum = |step: &&Step| step.how.map(|How { sum, .. }| sum);
    let near = steps.iter().filter(|step| step.measured <= EQUAL * least(steps));
    let near: Vec<Sum> = near.filter_map(sum).collect();
    let ways = |sums: Vec<Sum>| {
        let mut ways: Vec<Way> = sums.into_iter().map(|sum| sum.way).collect();
        ways.dedup();
        ways
    };
    let (all, best) = (ways(steps.iter().filter_map(sum).collect()), ways(near.clone()));
    let names = match all.len() {
        2.. if best == all => "any algorithm".to_owned(),
        _ => best.iter().map(Way::to_string).collect::<Vec<_>>().join(" or "),
    };
    match near.iter().filter(|sum| sum.overlap).count() {
        0 => format!("{names} without overlap"),
        count if count == near.len() => format!("{names} with overlap"),
        _ => names,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use cost_model::step::Predicted;

    use super::*;

    /// A step of one device that was predicted exactly.
    pub(crate) fn alone(measured: f64) -> Step {
        let predicted = Predicted { seconds: measured, compute: measured, communication: 0.0 };
        let model = "LeNet".to_owned();
        Step { model, batch_size: 256, devices: 1, how: None, predicted, measured }
    }

    /// Steps with the measured seconds of the ring in memory and over the slow link, each without and with overlap.
    pub(crate) fn steps(devices: usize, measured: [f64; 4]) -> Vec<Step> {
        of_way(Way::Ring, devices, measured)
    }

    fn of_way(way: Way, devices: usize, measured: [f64; 4]) -> Vec<Step> {
        let cases = [(false, false), (false, true), (true, false), (true, true)];
        let step = |((slow, overlap), measured)| Step {
            devices,
            how: Some(How { slow, sum: Sum { way, overlap } }),
            ..alone(measured)
        };
        cases.into_iter().zip(measured).map(step).collect()
    }

    #[test]
    fn the_fastest_algorithm_is_named_where_it_matters() {
        let said = |measured| times_of_one(2.0, &steps(2, measured));
        assert_eq!(
            said([1.0, 1.01, 1.6, 1.65]),
            "Fastest on 2 devices: ring, 2.00 times one device; over the slow link 1.25 times."
        );
        assert_eq!(
            said([1.0, 1.2, 3.0, 2.5]),
            "Fastest on 2 devices: ring without overlap, 2.00 times one device; over the slow link \
             ring with overlap, 0.80 times. Over the slow link, one device is faster."
        );
        assert!(said([4.0; 4]).ends_with("0.50 times. Both are slower than one device."));
        assert!(
            said([4.0, 4.0, 2.0, 2.0]).ends_with("1.00 times. In memory, one device is faster.")
        );
        assert!(said([2.01; 4]).ends_with("over the slow link 1.00 times."));
        let mut several = steps(4, [1.0, 1.0, 3.0, 2.0]);
        several.extend(of_way(Way::Tree, 4, [1.02, 1.0, 3.0, 2.05]));
        several.extend(of_way(Way::Naive, 4, [1.04, 1.2, 4.0, 3.0]));
        assert_eq!(
            times_of_one(2.0, &several),
            "Fastest on 4 devices: any algorithm, 2.00 times one device; over the slow link ring or \
             tree with overlap, 1.00 times."
        );
    }

    #[test]
    fn a_model_has_a_best_number_of_devices() {
        let said = |two, four: Option<[f64; 4]>, shared: &[usize]| {
            let mut all = vec![alone(0.02)];
            all.extend(steps(2, two));
            all.extend(four.into_iter().flat_map(|four| steps(4, four)));
            of_model(&all, shared)
        };
        let halved = [0.01, 0.01, 0.016, 0.016];
        assert_eq!(
            said(halved, None, &[]),
            "LeNet: 2 devices are fastest, 2.00 times one device. An epoch of 60,000 images takes \
             2.4 s. Over the slow link, the best are 2 devices, 1.25 times one device.\n\
             Predictions: half are off by at most 0 %, and the worst by 0 %: \
             2 devices, ring over the slow link, with overlap. \
             By the predictions, 2 devices are fastest, too."
        );
        let equal = said(halved, Some([0.0098, 0.0098, 0.03, 0.03]), &[]);
        assert!(
            equal.contains("2 devices are fastest, 2.00 times one device; more devices do not")
        );
        let shared = said(halved, Some([0.011; 4]), &[4]);
        assert!(
            shared.contains("2 devices are fastest") && shared.contains("only share the cores")
        );
        let slower = said([0.03; 4], Some([0.04; 4]), &[4]);
        assert!(slower.contains("one device is fastest; more devices do not help"), "{slower}");
        assert!(slower.contains("Over the slow link, one device is fastest."), "{slower}");
        let faster = said(halved, Some([0.005, 0.005, 0.02, 0.02]), &[]);
        assert!(faster.contains("4 devices are fastest, 4.00 times one device. An"), "{faster}");
        let one = of_model(&[alone(0.02)], &[]);
        assert!(one.contains("only one device was measured. An epoch"), "{one}");
        assert!(one.ends_with("The prediction is off by 0 %."), "{one}");
        assert_eq!(of_model(&[], &[]), "");
    }

    #[test]
    fn errors_of_predictions_are_reported() {
        let mut all = vec![alone(0.02)];
        all.extend(steps(2, [0.02; 4]));
        all[2].measured = 0.01;
        let text = predictions(&all);
        assert!(
            text.contains("at most 0 %, and the worst by +100 %: 2 devices, ring in memory, with")
        );
        assert!(text.contains("often means that other programs"), "{text}");
        assert!(text.ends_with("By the predictions, 1 device is fastest."), "{text}");
    }
}
