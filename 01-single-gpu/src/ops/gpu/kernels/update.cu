// What a step changes in place.

KERNEL descend(Count n, double step, const Stored *gradient, Stored *value) {
    Real by = step;
    FOR_EACH(i, n) value[i] = stored(real(value[i]) - real(gradient[i]) * by);
}

KERNEL accelerate(
    Count n,
    double momentum,
    double share,
    double decay,
    const Stored *gradient,
    const Stored *value,
    Stored *velocity
) {
    Real kept = momentum, pushed = share, pulled = decay;
    FOR_EACH(i, n) {
        Real pull = real(gradient[i]) * pushed + real(value[i]) * pulled;
        velocity[i] = stored(real(velocity[i]) * kept + pull);
    }
}

KERNEL average_into(Count n, double momentum, const double *fresh, Stored *running) {
    FOR_EACH(i, n) running[i] = stored(real(running[i]) * (1 - momentum) + fresh[i] * momentum);
}
