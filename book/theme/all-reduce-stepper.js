// <all-reduce-stepper>: an all-reduce, step by step.
//
//     <all-reduce-stepper algorithm="ring" devices="4">
//     <figure>a picture, for paper and for browsers without scripts</figure>
//     <script type="application/json">what `cargo xtask steps` recorded</script>
//     </all-reduce-stepper>
//
// Our collectives decided what is shown: which message goes when, from whom to whom, with which chunks, in
// how many bytes. What each rank holds, and has sent, follows from that.
//
// This file has four parts: what follows from a run, what is said, what is drawn, and the element. What it
// shares with other figures is in interactive-figure.js.
"use strict";

{
  const SECONDS_A_STEP = 1.4;

  const { shape } = InteractiveFigure;

  // ---- What follows from a run: { algorithm, ranks, steps: [[{ from, to, chunks, sum_of, bytes }]] }

  // Whose contributions each rank holds after so many steps: a set of ranks for [rank][chunk].
  function holdings(run, steps) {
    const all = [...Array(run.ranks).keys()];
    const held = all.map((rank) => all.map(() => new Set([rank])));
    for (const { to, chunks, sum_of } of run.steps.slice(0, steps).flat()) {
      // It is added to what was there, or contains that already.
      for (const chunk of chunks) for (const rank of sum_of) held[to][chunk].add(rank);
    }
    return held;
  }

  // The bytes that each rank has sent after so many steps.
  function bytesSent(run, steps) {
    const sent = Array(run.ranks).fill(0);
    for (const { from, bytes } of run.steps.slice(0, steps).flat()) sent[from] += bytes;
    return sent;
  }

  // ---- What is said

  const number = (value) => value.toLocaleString("en");

  const list = (items, word) =>
    items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} ${word} ${items.at(-1)}`;

  function describe(run, step) {
    const { ranks } = run;
    if (step === 0) return `Every rank holds its own numbers, cut into ${ranks} chunks.`;
    const messages = run.steps[step - 1];
    // A sum in which the receiver's own numbers are is not added to them again.
    const kept = messages.filter(({ to, sum_of }) => sum_of.includes(to));
    const added = messages.filter((message) => !kept.includes(message));
    const sentences = [];
    if (added.length > 0) {
      const held = holdings(run, step);
      const sizes = [...new Set(added.map(({ to, chunks }) => held[to][chunks[0]].size))].sort();
      const result = `now the sum of ${list(sizes, "or")} ranks`;
      sentences.push(`${who(run, added, ["adds it to what it has", "add it to what they have"])}: ${result}.`);
    }
    if (kept.length > 0) sentences.push(`${who(run, kept, ["keeps it", "keep it"])}.`);
    if (step === run.steps.length) sentences.push("All ranks hold the whole sum.");
    return sentences.join(" ");
  }

  // "Rank 1 sends all it has to rank 0, which …", "Every rank sends one chunk to the next, which …"
  function who(run, messages, [does, theyDo]) {
    const [{ chunks, sum_of }] = messages;
    const finished = sum_of.length === run.ranks;
    const what =
      chunks.length === run.ranks
        ? finished ? "the whole sum" : "all it has"
        : finished ? "a finished chunk" : "one chunk";
    const toTheNext = messages.every(({ from, to }) => to === (from + 1) % run.ranks);
    if (messages.length === run.ranks && toTheNext) {
      return `Every rank sends ${what} to the next, which ${does}`;
    }
    const pairs = messages.map(({ from, to }, index) =>
      index === 0 ? `Rank ${from} sends ${what} to rank ${to}` : `rank ${from} to rank ${to}`);
    return `${list(pairs, "and")}, which ${messages.length === 1 ? does : theyDo}`;
  }

  // ---- What is drawn

  // Ranks are rows and chunks columns; sizes in pixels, so that letters stay readable on a telephone.
  function layout(run, width) {
    const wide = width >= 600;
    const [left, right] = wide ? [64, 136] : [20, 6];
    const pitch = Math.min(84, Math.floor((width - left - right) / run.ranks));
    const gap = Math.max(11, Math.floor(pitch / 5));
    const cell = pitch - gap;
    const high = Math.max(20, Math.min(30, cell));
    const row = high + 12;
    const edge = Math.max(0, Math.floor((width - left - right - run.ranks * pitch) / 2));
    const x = (chunk) => edge + left + chunk * pitch;
    const y = (rank) => 26 + rank * row;
    return { wide, edge, cell, gap, high, x, y, height: y(run.ranks) };
  }

  function draw(run, step, width) {
    const place = layout(run, width);
    const { wide, edge, cell, high, x, y } = place;
    const messages = step === 0 ? [] : run.steps[step - 1];
    const sent = bytesSent(run, step);
    const shapes = [];
    const write = (text, x, y, attributes = {}) => shapes.push(shape("text", { x, y, ...attributes }, text));
    if (wide) write("chunk", edge, 16);
    for (let chunk = 0; chunk < run.ranks; chunk++) {
      write(chunk, x(chunk) + cell / 2, 16, { "text-anchor": "middle" });
    }
    holdings(run, step).forEach((chunks, rank) => {
      const line = y(rank) + high / 2 + 5;
      write(wide ? `rank ${rank}` : rank, edge, line);
      if (wide) write(`sent ${number(sent[rank])} bytes`, x(run.ranks) + 8, line);
      chunks.forEach((held, chunk) => {
        const arrived = messages.some(({ to, chunks }) => to === rank && chunks.includes(chunk));
        shapes.push(...drawCell(held, run.ranks, arrived, x(chunk), y(rank), place, rank, chunk));
      });
    });
    for (const message of messages) shapes.push(...drawArrow(message, place));
    return { shapes, height: place.height };
  }

  // A stripe for each contribution, at its rank's place; filled when all are there.
  function drawCell(held, ranks, arrived, x, y, { cell, high }, rank, chunk) {
    const whole = held.size === ranks;
    const classes = ["cell", whole && "whole", arrived && "new"].filter(Boolean).join(" ");
    const frame = shape("rect", { class: classes, x, y, width: cell, height: high });
    const of = [...held].sort();
    frame.append(shape("title", {}, `rank ${rank}, chunk ${chunk}: numbers of rank ${list(of, "and")}`));
    if (whole) {
      const middle = { x: x + cell / 2, y: y + high / 2 + 5, "text-anchor": "middle" };
      return [frame, shape("text", { class: "sigma", ...middle }, "Σ")];
    }
    const stripe = cell / ranks;
    const stripes = of.map((r) =>
      shape("rect", { class: `of-${r}`, x: x + r * stripe, y, width: stripe, height: high }));
    return [...stripes, frame];
  }

  // Beside the last chunk that travels, from the sender's row to the receiver's.
  function drawArrow({ from, to, chunks }, { cell, gap, high, x, y }) {
    const start = x(chunks.at(-1)) + cell + 1;
    const turn = start + gap - 4;
    const down = Math.sign(to - from);
    // A row may send and receive in one place: arrows leave below its middle and arrive above, or the
    // other way round.
    const [top, end] = [y(from) + high / 2 + 4 * down, y(to) + high / 2 - 4 * down];
    const d = `M${start} ${top}H${turn - 3}Q${turn} ${top} ${turn} ${top + 3 * down}\
V${end - 3 * down}Q${turn} ${end} ${turn - 3} ${end}H${start + 1}`;
    const tip = `M${start + 5} ${end - 4}L${start} ${end}L${start + 5} ${end + 4}`;
    return [shape("path", { class: "arrow", d, pathLength: 1 }), shape("path", { class: "arrow tip", d: tip })];
  }

  // ---- The element

  const PARTS = `
    <div class="controls">
      <div>
        <label>Algorithm <select class="algorithm"></select></label>
        <label>Devices <select class="devices"></select></label>
      </div>
      <div>
        <button type="button" class="first">First</button>
        <button type="button" class="back">Back</button>
        <button type="button" class="next">Step</button>
        <button type="button" class="play">Play</button>
      </div>
    </div>
    <div class="stage" tabindex="0" role="group"
      aria-label="The ranks and their chunks. Arrow keys step, space plays, Home and End jump.">
      <svg role="img"></svg>
    </div>
    <p class="now" aria-live="polite"></p>
    <dl>
      <div><dt>Step</dt><dd class="step"></dd></div>
      <div><dt>Sent in all</dt><dd class="all"></dd></div>
      <div><dt>By the busiest rank</dt><dd class="busiest"></dd></div>
    </dl>
    <p class="key">A row is a rank, a column a chunk. A stripe is one rank's contribution;
      <b>Σ</b> is the sum of all.</p>`;

  class AllReduceStepper extends InteractiveFigure {
    static PARTS = PARTS;
    static MENUS = { algorithm: "algorithm", devices: "ranks" };

    get choices() {
      return this.data.runs;
    }

    start(run) {
      this.run = run;
    }

    get last() {
      return this.run.steps.length;
    }

    get seconds() {
      return SECONDS_A_STEP;
    }

    tell() {
      const { run, step } = this;
      const svg = this.part("stage").firstElementChild;
      const width = this.part("stage").clientWidth;
      // On paper it has none.
      if (width > 0) {
        const { shapes, height } = draw(run, step, width);
        svg.setAttribute("height", height);
        svg.replaceChildren(...shapes);
      }
      svg.setAttribute("aria-label", `${run.algorithm} on ${run.ranks} ranks after step ${step}`);
      const sent = bytesSent(run, step);
      const told = (bytes) =>
        `${number(bytes)} bytes = ${Number((bytes / this.data.bytes).toFixed(2))} × the tensor`;
      this.part("step").textContent = `${step} of ${run.steps.length}`;
      this.part("all").textContent = told(sent.reduce((sum, bytes) => sum + bytes, 0));
      this.part("busiest").textContent = told(Math.max(...sent));
      this.part("now").textContent = describe(run, step);
    }
  }

  customElements.define("all-reduce-stepper", AllReduceStepper);
}
