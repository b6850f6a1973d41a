// expect: exponentials are taken of logits minus their row's largest, and ln never of a 0

/// Subtracts the largest logit, then takes ln of a probability that has become 0.
pub fn cross_entropy(logits: &[f64], labels: &[usize], classes: usize) -> (f64, Vec<f64>) {
    let mut loss = 0.0;
    let mut gradient = Vec::with_capacity(logits.len());
    for (row, &label) in logits.chunks_exact(classes).zip(labels) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|logit| (logit - largest).exp()).sum();
        loss -= ((row[label] - largest).exp() / sum).ln();
        for (class, logit) in row.iter().enumerate() {
            let probability = (logit - largest).exp() / sum;
            let target = if class == label { 1.0 } else { 0.0 };
            gradient.push(probability - target);
        }
    }
    (loss, gradient)
}
