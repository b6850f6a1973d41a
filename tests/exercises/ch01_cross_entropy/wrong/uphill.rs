// expect: that has the opposite sign: the update would go uphill

/// The label minus the probability: the direction in which to go, not the gradient.
pub fn cross_entropy(logits: &[f64], labels: &[usize], classes: usize) -> (f64, Vec<f64>) {
    let mut loss = 0.0;
    let mut gradient = Vec::with_capacity(logits.len());
    for (row, &label) in logits.chunks_exact(classes).zip(labels) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|logit| (logit - largest).exp()).sum();
        loss += sum.ln() - (row[label] - largest);
        for (class, logit) in row.iter().enumerate() {
            let probability = (logit - largest).exp() / sum;
            let target = if class == label { 1.0 } else { 0.0 };
            gradient.push(target - probability);
        }
    }
    (loss, gradient)
}
