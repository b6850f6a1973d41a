// expect: the loss of logits 1000 and 1000, then −1000 and −1000, both with label 0 is wrong

/// Subtracts the largest logit of the whole batch: all exponentials of a small row become 0.
pub fn cross_entropy(logits: &[f64], labels: &[usize], classes: usize) -> (f64, Vec<f64>) {
    let mut loss = 0.0;
    let mut gradient = Vec::with_capacity(logits.len());
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for (row, &label) in logits.chunks_exact(classes).zip(labels) {
        let sum: f64 = row.iter().map(|logit| (logit - largest).exp()).sum();
        loss += sum.ln() - (row[label] - largest);
        for (class, logit) in row.iter().enumerate() {
            let probability = (logit - largest).exp() / sum;
            let target = if class == label { 1.0 } else { 0.0 };
            gradient.push(probability - target);
        }
    }
    (loss, gradient)
}
