//! All choices, as bit sets.

pub fn recompute(forward: &[u64], activations: &[u64], inputs: &[u64], budget: u64) -> Vec<usize> {
    let units = forward.len();
    let is_in = |set: u32, unit: usize| set >> unit & 1 == 1;
    let most = |set: u32| {
        let (mut kept, mut most) = (0, 0);
        for unit in 0..units {
            let input = if is_in(set, unit) { inputs[unit] } else { 0 };
            most = most.max(kept + activations[unit] + input);
            kept += if is_in(set, unit) { inputs[unit] } else { activations[unit] };
        }
        most
    };
    let added = |set: u32| -> u64 {
        (0..units).filter(|&unit| is_in(set, unit)).map(|unit| forward[unit]).sum()
    };
    let choices = (0..1u32 << (units - 1)).filter(|&set| most(set) <= budget);
    let best = choices.min_by_key(|&set| added(set)).unwrap_or(0);
    (0..units).filter(|&unit| is_in(best, unit)).collect()
}

exercises::check!(ch07_recompute, recompute, run);
