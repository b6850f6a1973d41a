//! The smallest largest stage, by dynamic programming.
//!
//! Let best(s, i) be the largest stage when layers i and later are cut into s stages as well as can be. The
//! first of these stages ends somewhere, at j, and the rest is a smaller question of the same kind:
//!
//! ```text
//! best(1, i) = cost(i..n)
//! best(s, i) = min over j of max(cost(i..j), best(s − 1, j))
//! ```
//!
//! For n layers and p stages these are n·p questions of n answers each: nothing, beside one step of training.

use std::ops::Range;

use super::Error;

/// Cuts layers of these costs into stages so that the largest stage is as small as possible.
///
/// A cost is what a layer takes of what is scarce, in any unit: seconds, usually. Every stage has at least
/// one layer. Of cuts that are equally good it is the one whose first stage has the fewest layers, then
/// whose second has, …: in a pipeline the first stages keep the most activations.
///
/// ```
/// use model_parallel::partition::cut;
///
/// assert_eq!(cut(&[3.0, 3.0, 3.0, 3.0, 3.0, 1.0], 3)?, [0..2, 2..4, 4..6]);
/// # Ok::<_, model_parallel::partition::Error>(())
/// ```
///
/// # Errors
///
/// When there are fewer layers than stages or no stages, or a cost is negative or not a finite number.
// ANCHOR: cut
pub fn cut(costs: &[f64], stages: usize) -> Result<Vec<Range<usize>>, Error> {
    let layers = costs.len();
    if stages == 0 || stages > layers {
        return Err(Error::Stages { layers, stages });
    }
    let nonsense = |&(_, cost): &(usize, &f64)| !(cost.is_finite() && *cost >= 0.0);
    if let Some((layer, &cost)) = costs.iter().enumerate().find(nonsense) {
        return Err(Error::Cost { layer, cost });
    }
    // best[s][i]: where no stage is left, no layer may be left either.
    let mut best = vec![vec![f64::INFINITY; layers + 1]; stages + 1];
    best[0][layers] = 0.0;
    for s in 1..=stages {
        for i in 0..layers {
            let largest = ends(costs, i).map(|(j, cost)| cost.max(best[s - 1][j]));
            best[s][i] = largest.fold(f64::INFINITY, f64::min);
        }
    }
    let goal = best[stages][0];
    let mut ranges = Vec::with_capacity(stages);
    let mut begin = 0;
    for rest in (0..stages).rev() {
        let good = |&(j, cost): &(usize, f64)| cost.max(best[rest][j]) <= goal;
        let end = ends(costs, begin).find(good).map_or(layers, |(j, _)| j);
        ranges.push(begin..end);
        begin = end;
    }
    Ok(ranges)
}
// ANCHOR_END: cut

/// Where a stage that begins at layer `i` can end, and what it costs then.
fn ends(costs: &[f64], i: usize) -> impl Iterator<Item = (usize, f64)> {
    let sums = costs[i..].iter().scan(0.0, |sum, cost| {
        *sum += cost;
        Some(*sum)
    });
    (i + 1..).zip(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(costs: &[f64], ranges: &[Range<usize>]) -> f64 {
        ranges.iter().map(|range| costs[range.clone()].iter().sum()).fold(0.0, f64::max)
    }

    /// All cuts, in the order of the first stage's length, then the second's, …
    fn all(layers: Range<usize>, stages: usize) -> Vec<Vec<Range<usize>>> {
        if stages == 1 {
            return vec![vec![layers]];
        }
        let of_first = |end| {
            all(end..layers.end, stages - 1).into_iter().map(move |mut cut| {
                cut.insert(0, layers.start..end);
                cut
            })
        };
        (layers.start + 1..layers.end).flat_map(of_first).collect()
    }

    /// Goes on until a stage has its share, and leaves a layer for each stage that comes.
    fn by_share(costs: &[f64], stages: usize) -> Vec<Range<usize>> {
        let share = costs.iter().sum::<f64>() / stages as f64;
        let mut ranges = Vec::new();
        let mut begin = 0;
        for rest in (1..stages).rev() {
            let fits = |&(j, cost): &(usize, f64)| cost <= share && j + rest <= costs.len();
            let end = ends(costs, begin).take_while(fits).last().map_or(begin + 1, |(j, _)| j);
            ranges.push(begin..end);
            begin = end;
        }
        ranges.push(begin..costs.len());
        ranges
    }

    #[test]
    fn no_cut_is_better_and_of_equals_it_is_the_first() {
        let mut cuts = 0;
        for layers in 1..=6usize {
            for number in 0..4usize.pow(layers as u32) {
                let cost = |i| (number / 4usize.pow(i as u32) % 4) as f64;
                let costs: Vec<f64> = (0..layers).map(cost).collect();
                for stages in 1..=layers {
                    let all = all(0..layers, stages);
                    let smallest =
                        all.iter().map(|cut| largest(&costs, cut)).fold(f64::INFINITY, f64::min);
                    let first = all.iter().find(|cut| largest(&costs, cut) == smallest);
                    assert_eq!(Some(&cut(&costs, stages).unwrap()), first, "{costs:?} / {stages}");
                    cuts += 1;
                }
            }
        }
        assert_eq!(cuts, 4 + 2 * 16 + 3 * 64 + 4 * 256 + 5 * 1024 + 6 * 4096);
    }

    #[test]
    fn costs_whose_sums_round_have_a_best_cut_too() {
        let costs: Vec<f64> = (1..12).map(|i| 0.1 * f64::from(i * 7 % 5) + 1e-3).collect();
        for stages in 1..=11 {
            let smallest =
                all(0..11, stages).iter().map(|cut| largest(&costs, cut)).reduce(f64::min);
            assert_eq!(Some(largest(&costs, &cut(&costs, stages).unwrap())), smallest);
        }
    }

    #[test]
    fn taking_a_fair_share_in_turn_is_worse() {
        let costs = [3.0, 3.0, 3.0, 3.0, 3.0, 1.0];
        assert_eq!(by_share(&costs, 3), [0..1, 1..2, 2..6]);
        assert_eq!(largest(&costs, &by_share(&costs, 3)), 10.0);
        assert_eq!(largest(&costs, &cut(&costs, 3).unwrap()), 6.0);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let stages = |layers, stages| Error::Stages { layers, stages };
        assert_eq!(cut(&[1.0, 2.0], 3), Err(stages(2, 3)));
        assert_eq!(cut(&[1.0, 2.0], 0), Err(stages(2, 0)));
        assert_eq!(cut(&[], 1), Err(stages(0, 1)));
        for cost in [-1.0, f64::NAN, f64::INFINITY] {
            let told = cut(&[1.0, cost], 1).unwrap_err().to_string();
            assert!(told.starts_with(&format!("layer 1 costs {cost}: ")), "{told}");
        }
    }
}
