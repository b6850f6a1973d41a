//! What a step changes in place.

use super::*;

/// The second row of a tensor of two, with all of its memory.
fn second_row(rows: &Tensor) -> Held {
    let Held { storage, layout } = held(rows);
    Held { storage, layout: layout.narrow(0, 1, 1).unwrap() }
}

fn change<'a>(changed: &'a mut Held, read: &'a Held) -> Change<'a, CpuStorage> {
    Change { changed: (&mut changed.storage, &changed.layout), read: read.operand() }
}

/// Several tensors of different sizes, the last of them the second half of some memory, beside what is read for them.
struct Slots {
    rows: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

impl Slots {
    fn new(name: &str, count: usize, dtype: DType) -> Self {
        let sizes = (0..count).map(|nth| 2 * THREADS + 3 - 70 * nth);
        let of = |what: &str| {
            let named = |(nth, n)| rounded(&format!("{name} {what} {nth}"), &[2, n], dtype);
            sizes.clone().enumerate().map(named).collect()
        };
        Self { rows: of("value"), gradients: of("gradient") }
    }

    fn held(&self) -> (Vec<Held>, Vec<Held>) {
        let second_rows = |rows: &[Tensor]| rows.iter().map(second_row).collect();
        (second_rows(&self.rows), second_rows(&self.gradients))
    }

    /// Makes sure that second rows are what they should be, and the first ones as they were.
    fn check(
        &self,
        found: Vec<Held>,
        bound: f64,
        expected: impl Fn(usize, &Tensor, &Tensor) -> Tensor,
    ) {
        for (nth, found) in found.into_iter().enumerate() {
            let (before, gradient) = (exact(&self.rows[nth]), exact(&self.gradients[nth]));
            let found = tensor(found.storage, before.shape());
            let row = |of: &Tensor, row| of.get(row).unwrap();
            assert_close(&row(&found, 0), &row(&before, 0), 0.0);
            assert_close(
                &row(&found, 1),
                &expected(nth, &row(&before, 1), &row(&gradient, 1)),
                bound,
            );
        }
    }
}

/// a · x + b · y.
fn combined([a, b]: [f64; 2], x: &Tensor, y: &Tensor) -> Tensor {
    ((x * a).unwrap() + (y * b).unwrap()).unwrap()
}

#[test]
fn one_launch_descends_along_several_gradients() {
    let Some(machine) = emulator() else { return };
    let step = 0.1 / 7.0;
    for ((dtype, bound), count) in TYPES.into_iter().cartesian_product([1, 2, 4, 8]) {
        let slots = Slots::new("descend", count, dtype);
        let (mut values, gradients) = slots.held();
        let changes = values.iter_mut().zip(&gradients).map(|(value, read)| change(value, read));
        update::descend(machine, changes.collect(), step).unwrap();
        slots.check(values, bound, |_, value, gradient| combined([1.0, -step], value, gradient));
    }
}

#[test]
fn one_launch_pushes_several_velocities_and_values() {
    let Some(machine) = emulator() else { return };
    let [momentum, share, decay, rate] = [0.9, 0.25, 1e-2, 0.1];
    for ((dtype, bound), count) in TYPES.into_iter().cartesian_product([1, 2, 4, 8]) {
        let (slots, before) =
            (Slots::new("push", count, dtype), Slots::new("moving", count, dtype));
        let ((mut values, gradients), (mut velocities, _)) = (slots.held(), before.held());
        let moved = velocities.iter_mut().zip(&mut values).zip(&gradients);
        let changes = moved
            .flat_map(|((velocity, value), read)| [change(velocity, read), change(value, read)]);
        update::push(machine, changes.collect(), [momentum, share, decay, rate]).unwrap();
        let velocity = |nth: usize, value: &Tensor, gradient: &Tensor| {
            let before = exact(&before.rows[nth]).get(1).unwrap();
            combined([momentum, 1.0], &before, &combined([share, decay], gradient, value))
        };
        let second = |rows: &Tensor| exact(rows).get(1).unwrap();
        before.check(velocities, bound, |nth, _, _| {
            velocity(nth, &second(&slots.rows[nth]), &second(&slots.gradients[nth]))
        });
        slots.check(values, bound, |nth, value, gradient| {
            combined([1.0, -rate], value, &velocity(nth, value, gradient))
        });
    }
}

#[test]
fn one_launch_rounds_several_tensors() {
    let Some(machine) = emulator() else { return };
    for ((dtype, _), count) in TYPES.into_iter().cartesian_product([1, 2, 4, 8]) {
        let used = Slots::new("used", count, dtype);
        let kept = Slots::new("kept", count, DType::F32);
        let ((mut values, _), (kept_values, _)) = (used.held(), kept.held());
        let changes = values.iter_mut().zip(&kept_values).map(|(used, kept)| change(used, kept));
        update::round_off(machine, changes.collect()).unwrap();
        // To the last bit: as candle rounds on the CPU.
        used.check(values, 0.0, |nth, _, _| {
            let kept = kept.rows[nth].get(1).unwrap().to_dtype(dtype).unwrap();
            kept.to_dtype(DType::F64).unwrap()
        });
    }
}

#[test]
fn one_launch_moves_several_running_averages() {
    let Some(machine) = emulator() else { return };
    for ((dtype, bound), count) in TYPES.into_iter().cartesian_product([1, 2, 4, 8]) {
        let (running, fresh) =
            (Slots::new("running", count, dtype), Slots::new("fresh", count, DType::F64));
        let scales: Vec<f64> = (0..count).map(|nth| 1.0 + 0.25 * nth as f64).collect();
        let ((mut values, _), (new, _)) = (running.held(), fresh.held());
        let changes = values.iter_mut().zip(&new).map(|(running, new)| change(running, new));
        update::average_into(machine, changes.collect(), 0.1, &scales).unwrap();
        running.check(values, bound, |nth, before, _| {
            combined([0.9, 0.1 * scales[nth]], before, &fresh.rows[nth].get(1).unwrap())
        });
    }
}

#[test]
fn an_update_of_another_size_or_type_is_refused() {
    let Some(machine) = emulator() else { return };
    let [both, gradient] = ["both", "gradient"].map(|name| rounded(name, &[2, 30], DType::F32));
    let refused = |mut value: Held, gradient: &Held| {
        let changes = vec![change(&mut value, gradient)];
        update::descend(machine, changes, 0.1).unwrap_err().to_string()
    };
    let error = refused(held(&both), &second_row(&gradient));
    assert!(error.contains("30 elements to update 60 with"), "{error}");
    let error = refused(held(&exact(&both)), &held(&gradient));
    assert!(error.contains("expected F32 to be changed, got F64"), "{error}");
    let three: Vec<Held> = (0..3).map(|_| held(&gradient)).collect();
    let mut values: Vec<Held> = (0..3).map(|_| held(&both)).collect();
    let changes = values.iter_mut().zip(&three).map(|(value, read)| change(value, read)).collect();
    let error = update::descend(machine, changes, 0.1).unwrap_err().to_string();
    assert!(error.contains("no kernel that updates 3 tensors"), "{error}");
}
