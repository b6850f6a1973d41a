//! What a step changes in place.

use super::*;

/// The second row of a tensor of two, with all of its memory.
fn second_row(rows: &Tensor) -> Held {
    let Held { storage, layout } = held(rows);
    Held { storage, layout: layout.narrow(0, 1, 1).unwrap() }
}

#[test]
fn updates_in_place() {
    let Some(machine) = emulator() else { return };
    let n = 2 * THREADS + 3;
    for (dtype, bound) in TYPES {
        // A parameter and a gradient that are the second halves of some memory.
        let [both, gradients] = ["both", "gradient"].map(|name| rounded(name, &[2, n], dtype));
        let (gradient, value) = (gradients.get(1).unwrap(), rounded("value", &[n], dtype));
        let (exact_both, exact_gradient) = (exact(&both), exact(&gradient));
        let second = exact_both.get(1).unwrap();
        let check = |held: Held, expected: Tensor| {
            let found = tensor(held.storage, (2, n));
            assert_close(&found.get(0).unwrap(), &exact_both.get(0).unwrap(), 0.0);
            assert_close(&found.get(1).unwrap(), &expected, bound);
        };
        let (mut updated, pushed) = (second_row(&both), second_row(&gradients));
        let step = 0.1 / 7.0;
        update::descend(machine, updated.updated(), pushed.operand(), step).unwrap();
        check(updated, (&second - (exact_gradient.as_tensor() * step).unwrap()).unwrap());

        let (mut updated, constants) = (second_row(&both), [0.9, 0.25, 1e-2]);
        let pulled = held(&value);
        update::accelerate(
            machine,
            updated.updated(),
            pushed.operand(),
            pulled.operand(),
            constants,
        )
        .unwrap();
        let pull = ((exact_gradient.as_tensor() * 0.25).unwrap()
            + (exact(&value).as_tensor() * 1e-2).unwrap())
        .unwrap();
        check(updated, ((&second * 0.9).unwrap() + pull).unwrap());

        let mut updated = second_row(&both);
        let fresh = held(&exact_gradient);
        update::average_into(machine, updated.updated(), fresh.operand(), 0.1).unwrap();
        let expected = (&second * 0.9).unwrap() + (exact_gradient.as_tensor() * 0.1).unwrap();
        check(updated, expected.unwrap());

        let mut other = held(&both);
        let error = update::descend(machine, other.updated(), held(&gradient).operand(), step);
        assert!(error.unwrap_err().to_string().contains("elements to update"));
    }
}
