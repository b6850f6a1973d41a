// <step-lists>: who does what when in a step of training, and what memory that takes.
//
//     <step-lists kind="1F1B" stages="4" micro-batches="8" links="fast">
//     <figure>a picture, for paper and for browsers without scripts</figure>
//     <script type="application/json">what `cargo xtask schedules` wrote</script>
//     </step-lists>
//
// The course's own lists, checker and simulator decided what is shown, down to the words with which a list is
// refused; `tests/xtask/src/lists.rs` says how it is written down. The data has the menus, too, and the words
// and colours of all that a device does: this file knows streams, and no kinds of lists.
//
// This file has four parts: what is read, what is said, what is drawn, and the element. What it shares with
// other figures is in interactive-figure.js.
"use strict";

{
  // All of a step in this time, but no part of it too fast or too slow to be seen.
  const SECONDS_A_RUN = 16;
  const [FASTEST, SLOWEST] = [0.12, 0.6];
  // Times are multiples of this. A step has at most so many moments.
  const GRAIN = 0.001;
  const MOMENTS = 1000;

  const { shape } = InteractiveFigure;

  // ---- What is read: { stages, units, …, rows: [[computing, communicating, memory], …] }

  // "F3.1:2 +5 B0": a letter, its label's numbers, and a time if it is not the label's; between two pieces a gap,
  // or with a minus how much earlier the next begins. Numbers that are missing are 0.
  function piecesOf(text, usual) {
    const pieces = [];
    let time = 0;
    for (const token of text.split(" ").filter(Boolean)) {
      const [, gap, letter, numbers, length] = /^(?:([+-].*)|([A-Za-z]?)([\d.]*)(?::(.*))?)$/.exec(token);
      if (gap) {
        time += Number(gap);
        continue;
      }
      const [start, end] = [time, time + Number(length ?? usual(letter, time))];
      pieces.push({ letter, numbers: numbers.split(".").map(Number), start, end });
      time = end;
    }
    return pieces;
  }

  // What a stream does from beginning to end: pieces with a label, and between them pieces without. `number` is
  // what stands in a piece, and pieces with an odd number of the other meaning are pale.
  function streamOf(text, { labels, number }, odd, units) {
    const cells = [];
    let time = 0;
    const idle = (end) => {
      if (end > time) cells.push({ start: time, end });
      time = Math.max(time, end);
    };
    const labelled = (letter) => labels.find((label) => label.letter === letter);
    for (const { letter, numbers, start, end } of piecesOf(text, (letter) => labelled(letter).units)) {
      idle(start);
      const label = labelled(letter);
      const found = new Map(label.numbers.map((meaning, i) => [meaning, numbers[i] ?? 0]));
      const pale = label.pale || (found.get(odd) ?? 0) % 2 === 1;
      cells.push({ label, found, number: found.get(number), pale, start, end });
      time = Math.max(time, end);
    }
    idle(units);
    return cells;
  }

  // The lanes of a row: both streams, and the levels of memory, each with the bytes of every kind.
  function lanesOf([computing, communicating, memory], look, { units }, states) {
    const computes = streamOf(computing, look, look.pale, units);
    const next = (_, time) => computes.find(({ end }) => end > time).end - time;
    const held = piecesOf(memory, next).map(({ numbers: [state], start, end }) => ({ state: states[state], start, end }));
    return { streams: [computes, streamOf(communicating, look, undefined, units)], held };
  }

  // The longest time of which all times are multiples.
  function tickOf(cells, units) {
    const common = (a, b) => (b === 0 ? a : common(b, a % b));
    const grains = cells.map(({ start }) => Math.round(start / GRAIN));
    return Math.max(units / MOMENTS, GRAIN * grains.reduce(common, Math.round(units / GRAIN)));
  }

  // ---- What is said

  const count = (n, thing, things = `${thing}s`) => `${n} ${n === 1 ? thing : things}`;

  const short = (number) => String(Math.round(100 * number) / 100);

  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  const capital = (word) => word[0].toUpperCase() + word.slice(1);

  const IDLE = ["idle", "no communication"];

  // "Stage 1, micro-batch 2, backward, from 7 to 9"
  function name(owner, stream, { label, found, start, end }) {
    const which = [...(found ?? [])].map(([meaning, number]) => `${meaning} ${number}`);
    const what = label ? [...which, label.name] : [IDLE[stream]];
    return [capital(owner), ...what, `from ${short(start)} to ${short(end)}`].join(", ");
  }

  // "Holds 9.25: parameters 2, …"
  function describe(state, kinds) {
    const parts = kinds.map(({ name }, i) => [name, state[i]]).filter(([, size]) => size > 0);
    return `Holds ${short(sum(state))}: ${parts.map(([name, size]) => `${name} ${short(size)}`).join(", ")}.`;
  }

  // ---- What is drawn

  const NARROWEST = 3.5;
  const HEAD = 22;
  const AXIS = 26;
  const CURVE = 84;
  // For the frame of what is at the very beginning or end.
  const EDGE = 2;

  // Rows are below each other, time goes right; sizes in pixels, so that letters stay readable on a telephone.
  // What does not fit is scrolled to: the shortest piece of work is at least so many pixels wide.
  function layout({ units, peaks }, lanes, shortest, longest, width) {
    const wide = width >= 600;
    const [names, notes] = wide ? [58, 56] : [36, 42];
    const room = width - names - notes;
    // On one scale, what is sooner done is shorter. A narrow page has no room for that.
    const length = Math.max(units, ...(wide ? longest : []));
    const unit = Math.min(40, Math.max(NARROWEST / shortest, (room - 2 * EDGE) / length));
    const high = wide ? [26, 16] : [22, 14];
    const streams = lanes.some(({ stream }) => stream === 1) ? 2 : 1;
    const gap = streams === 1 ? 4 : 9;
    const pitch = sum(high.slice(0, streams)) + streams - 1 + gap;
    const rows = peaks.length;
    const bottom = HEAD + rows * pitch - gap;
    const most = Math.max(...peaks);
    const floor = bottom + AXIS + 26 + CURVE;
    return {
      wide, names, notes, unit, high, most, bottom, floor, level: CURVE / most, height: floor + 8,
      shown: Math.min(room, length * unit + 2 * EDGE), length: length * unit + 2 * EDGE,
      x: (time) => EDGE + time * unit,
      y: ({ row, stream }) => HEAD + row * pitch + (stream === 0 ? 0 : high[0] + 1),
      middle: (row) => HEAD + row * pitch + (pitch - gap) / 2 + 5,
    };
  }

  // Names of the rows, and of the curve its name, its floor and its ceiling. They stay where they are when the
  // drawing is scrolled.
  function drawNames(plan, word, { wide, names, middle, most, level, floor }) {
    const right = { x: names - 8, "text-anchor": "end" };
    return [
      ...plan.rows.map((_, row) =>
        shape("text", { class: "row-name", ...right, y: middle(row) }, wide ? `${word} ${row}` : row)),
      shape("text", { class: "small", ...right, y: floor + 4 }, 0),
      shape("text", { class: "small", ...right, y: floor - most * level + 4 }, short(most)),
      shape("text", { class: "small curve", x: names + EDGE, y: floor - most * level - 8 }),
    ];
  }

  function drawPeaks({ peaks }, { notes, middle }) {
    const right = { x: notes - 2, "text-anchor": "end" };
    return [
      shape("text", { class: "small", ...right, y: HEAD - 8 }, "peak"),
      ...peaks.map((value, row) => shape("text", { class: "peak", ...right, y: middle(row) }, short(value))),
    ];
  }

  // As large as all numbers of a stream can be in a cell; 0 where they would be too small to read.
  function letterSize(width, digits, high) {
    const size = Math.min(13, high - 3, (width - 1.2) / (0.58 * digits));
    return size >= 11 ? size : 0;
  }

  function drawCells(lanes, word, place) {
    const { x, y, high, unit } = place;
    const numbers = lanes.flatMap(({ cells }) => cells.map(({ number }) => number ?? 0));
    const digits = String(Math.max(...numbers)).length;
    return lanes.flatMap((lane) => lane.cells.flatMap((cell) => {
      const { label, number, start, end } = cell;
      const box = { x: x(start), y: y(lane), width: x(end) - x(start), height: high[lane.stream] };
      // A hair apart.
      const width = label ? box.width - (unit < 8 ? 0.5 : 1) : box.width;
      const rect = shape("rect", { class: label ? classOf(cell) : IDLE_CLASSES[lane.stream], ...box, width });
      rect.append(shape("title", {}, name(`${word} ${lane.row}`, lane.stream, cell)));
      const size = letterSize(box.width, digits, box.height);
      if (number === undefined || size === 0) return [rect];
      const middle = { x: (x(start) + x(end) - 1) / 2, y: y(lane) + box.height / 2 + size * 0.36 };
      const text = { class: cell.pale ? "number pale" : "number", "font-size": size, ...middle };
      return [rect, shape("text", text, number)];
    }));
  }

  const IDLE_CLASSES = ["cell idle", "cell idle quiet"];

  const classOf = ({ label, pale }) => `cell series-${label.series}${pale ? " pale" : ""}`;

  function drawAxis({ units }, { x, bottom, unit }) {
    const tick = [1, 2, 5, 10, 20, 50, 100].find((tick) => tick * unit >= 34);
    const shapes = [];
    for (let time = 0; time <= units; time += tick) {
      // Numbers stand inside the drawing.
      const anchor = time === 0 ? "start" : x(units) - x(time) < 12 ? "end" : "middle";
      shapes.push(
        shape("path", { class: "tick", d: `M${x(time)} ${bottom + 2}v5` }),
        shape("text", { class: "small", x: x(time), y: bottom + 19, "text-anchor": anchor }, time),
      );
    }
    return shapes;
  }

  // What a row holds over time, a kind above the other.
  function drawCurve(held, kinds, { x, floor, level, most, length }) {
    const upTo = (value) => floor - value * level;
    const areas = kinds.map(({ series }, kind) => {
      const edge = (below) => held.map(({ state, start, end }) =>
        [x(start), x(end)].map((x) => `${x} ${upTo(sum(state.slice(0, below)))}`));
      const [upper, lower] = [edge(kind + 1).flat(), edge(kind).flat().reverse()];
      return shape("path", { class: `kept series-${series}`, d: `M${[...upper, ...lower].join("L")}Z` });
    });
    const lines = [floor + 0.5, upTo(most) - 0.5];
    return [...lines.map((y) => shape("path", { class: "tick", d: `M${x(0)} ${y}H${length}` })), ...areas];
  }

  // The time that is told about, in the rows and in the curve.
  function drawCursor(time, tick, { x, bottom, floor, most, level }) {
    const band = (top, bottom) => `M${x(time)} ${top}H${x(time + tick)}V${bottom}H${x(time)}Z`;
    const d = band(HEAD - 5, bottom + 5) + band(floor - most * level, floor);
    return shape("path", { class: "cursor", d });
  }

  // The cell that is told about, and where else its number is.
  function drawPointed(lanes, chosen, pointed, { x, y, high }) {
    const frame = (lane, { start, end }, classes, out = 0) => {
      const [width, height] = [x(end) - x(start) - 1 + 2 * out, high[lane.stream] + 2 * out];
      return shape("rect", { class: classes, x: x(start) - out, y: y(lane) - out, width, height });
    };
    const same = lanes.flatMap((lane) =>
      lane.cells.filter(({ number }) => number !== undefined && number === pointed.number)
        .map((cell) => frame(lane, cell, "same")));
    return [...same, frame(chosen, pointed, "pointed", 1)];
  }

  // ---- The element

  // A field of the data as a class and as an attribute.
  const dashed = (field) => field.replaceAll("_", "-");

  const PARTS = (menus, facts) => `
    <div class="controls">
      <div>
        ${menus.map(({ field, name }) => `<label>${name} <select class="${dashed(field)}"></select></label>`).join("\n")}
      </div>
      <div>
        <button type="button" class="first">First</button>
        <button type="button" class="back">Back</button>
        <button type="button" class="next">Step</button>
        <button type="button" class="play">Play</button>
      </div>
    </div>
    <dl>
      ${facts.map((name) => `<div><dt>${name}</dt><dd></dd></div>`).join("\n")}
    </dl>
    <div class="stage" tabindex="0" role="group" aria-label="The devices and what they do. Arrow keys go through time
      and from stream to stream, space plays, Home and End jump.">
      <svg class="names" aria-hidden="true"></svg>
      <div class="plot" tabindex="-1"><svg role="img"></svg></div>
      <svg class="peaks" aria-hidden="true"></svg>
    </div>
    <p class="now" aria-live="polite"></p>
    <ul class="legend"></ul>
    <p class="key"></p>`;

  class StepLists extends InteractiveFigure {
    connectedCallback() {
      if (this.parts) return;
      super.connectedCallback();
      const plot = this.part("plot");
      for (const kind of ["pointermove", "pointerdown"]) {
        plot.addEventListener(kind, (event) => this.point(event));
      }
    }

    get html() {
      return PARTS(this.data.menus, this.data.facts);
    }

    get menus() {
      return Object.fromEntries(this.data.menus.map(({ field }) => [dashed(field), field]));
    }

    get choices() {
      return this.data.plans;
    }

    start(plan) {
      const { shapes, states, menus } = this.data;
      this.plan = plan;
      const [{ field }] = menus;
      this.look = shapes.find((shape) => shape[field] === plan[field]);
      this.rows = plan.rows?.map((row) => lanesOf(row, this.look, plan, states)) ?? [];
      // A stream in which nothing ever happens is not drawn.
      const streams = [0, 1].filter((stream) => this.rows.some(({ streams }) => streams[stream].some(({ label }) => label)));
      this.lanes = this.rows.flatMap((lanes, row) =>
        streams.map((stream) => ({ row, stream, cells: lanes.streams[stream] })));
      this.lane = Math.min(this.lane ?? 0, Math.max(0, this.lanes.length - 1));
      this.tick = tickOf(this.lanes.flatMap(({ cells }) => cells), plan.units);
      this.drawn = undefined;
      this.explain();
    }

    get last() {
      return this.plan.refused ? 0 : Math.round(this.plan.units / this.tick) - 1;
    }

    get seconds() {
      return Math.max(FASTEST, Math.min(SLOWEST, SECONDS_A_RUN / (this.last + 1)));
    }

    get keys() {
      return { ArrowUp: () => this.goTo(this.lane - 1), ArrowDown: () => this.goTo(this.lane + 1) };
    }

    goTo(lane, step = this.step) {
      this.lane = Math.max(0, Math.min(this.lanes.length - 1, lane));
      this.go(step);
    }

    pause() {
      super.pause();
      this.part("stage").classList.remove("playing");
    }

    // What is under the pointer is told about; what plays is left alone until it is clicked at.
    point({ type, clientX, clientY }) {
      if (this.timer && type === "pointermove") return;
      const { left, top } = this.part("plot").firstElementChild.getBoundingClientRect();
      const { unit, y, high, x } = this.place;
      const step = Math.floor((clientX - left - x(0)) / unit / this.tick);
      const lane = this.lanes.findIndex((lane) => clientY - top >= y(lane) && clientY - top < y(lane) + high[lane.stream]);
      if (lane < 0 || step < 0 || step > this.last) return;
      if (lane !== this.lane || step !== this.step || this.timer) this.goTo(lane, step);
    }

    // Of what the numbers are, and which colour is what.
    explain() {
      const { plan, look, lanes, rows } = this;
      this.parts.classList.toggle("refused", plan.refused !== undefined);
      this.parts.querySelectorAll("dd").forEach((part, i) => {
        part.textContent = plan.facts?.[i] ?? "–";
      });
      // A colour, and what it means.
      const entry = (classes, words) => {
        const item = document.createElement("li");
        const swatch = shape("svg", { viewBox: "0 0 16 12", "aria-hidden": "true" });
        swatch.append(shape("rect", { class: classes, x: 0.5, y: 0.5, width: 15, height: 11 }));
        item.append(swatch, words);
        return item;
      };
      const work = look.labels.flatMap((label) => {
        const cells = lanes.flatMap(({ cells }) => cells.filter((cell) => cell.label === label));
        const lengths = new Set(cells.map(({ start, end }) => Number(short(end - start))));
        // Of a message, only the part that is waited for is drawn: some are shorter than others.
        const length = lengths.size === 1 ? `: ${count([...lengths][0], "unit")}` : "";
        return cells.length > 0 ? [entry(classOf({ label, pale: label.pale }), `${label.name}${length}`)] : [];
      });
      const held = this.data.held.filter((_, kind) => rows.some(({ held }) => held.some(({ state }) => state[kind] > 0)));
      const memory = held.map(({ name, series }) => entry(`kept series-${series}`, `memory: ${name}`));
      this.part("legend").replaceChildren(...work, entry("cell idle", "idle: the bubble"), ...memory);
      this.part("key").textContent = look.key;
    }

    tell() {
      const { plan, step } = this;
      const now = this.part("now");
      // Nobody could listen to all of it.
      now.ariaLive = this.timer ? "off" : "polite";
      // What is still to come is dimmed.
      if (this.timer) this.part("stage").classList.add("playing");
      if (plan.refused) {
        now.textContent = plan.refused;
        return;
      }
      const width = this.part("stage").clientWidth;
      const lane = this.lanes[this.lane];
      const time = step * this.tick;
      const is = ({ start, end }) => start <= time + GRAIN / 2 && time + GRAIN / 2 < end;
      // The last of several that overlap is on top.
      const cell = lane.cells.findLast(is);
      const { held } = this.rows[lane.row];
      const owner = `${this.data.row} ${lane.row}`;
      now.textContent = `${name(owner, lane.stream, cell)}. ${describe(held.find(is).state, this.data.held)}`;
      // On paper it has none.
      if (width === 0) return;
      if (this.drawn !== width) this.draw(width);
      this.drawn = width;
      const { place } = this;
      const { x, floor, length } = place;
      const end = x(time + this.tick);
      this.cursor.replaceChildren(
        shape("rect", { class: "veil", x: end, y: 0, width: Math.max(0, length - end), height: floor }),
        ...drawCurve(held, this.data.held, place),
        drawCursor(time, this.tick, place),
        ...drawPointed(this.lanes, lane, cell, place),
      );
      this.part("curve").textContent = `memory of ${owner}`;
      this.part("names").querySelectorAll(".row-name").forEach((name, row) => {
        name.classList.toggle("chosen", row === lane.row);
      });
      this.follow(x(cell.start), x(cell.end));
    }

    // All that stays while time passes.
    draw(width) {
      const { plan, lanes } = this;
      const { menus, facts, plans } = this.data;
      // Others of this size, but those that take several times as long.
      const same = menus.filter(({ compared }) => !compared).map(({ field }) => field);
      const alike = plans.filter((other) => other.units && same.every((field) => other[field] === plan[field]));
      const longest = alike.map(({ units }) => units).filter((units) => units < 2 * Math.min(...alike.map(({ units }) => units)));
      const shortest = Math.min(...lanes.flatMap(({ stream, cells }) =>
        cells.filter(({ label }) => label && stream === 0).map(({ start, end }) => end - start)));
      this.place = layout(plan, lanes, shortest, longest, width);
      const { names, shown, length, notes, height } = this.place;
      this.cursor = shape("g", {});
      const fill = (svg, width, shapes) => {
        svg.setAttribute("width", width);
        svg.setAttribute("height", height);
        svg.style.width = `${width}px`;
        svg.replaceChildren(...shapes);
      };
      const plot = this.part("plot");
      plot.style.width = `${shown}px`;
      const word = this.data.row;
      fill(plot.firstElementChild, length, [...drawCells(lanes, word, this.place), ...drawAxis(plan, this.place), this.cursor]);
      const chosen = menus.map(({ field, name }) => `${name}: ${plan[field]}`);
      const found = facts.map((name, i) => `${name}: ${plan.facts[i]}`);
      plot.firstElementChild.setAttribute("aria-label", [...chosen, ...found].join(", "));
      fill(this.part("names"), names, drawNames(plan, word, this.place));
      fill(this.part("peaks"), notes, drawPeaks(plan, this.place));
    }

    // Where all of it does not fit, what is told about is scrolled to.
    follow(left, right) {
      const plot = this.part("plot");
      const { scrollLeft, clientWidth } = plot;
      if (left < scrollLeft) plot.scrollLeft = Math.max(0, left - 20);
      if (right > scrollLeft + clientWidth) plot.scrollLeft = right + 20 - clientWidth;
    }
  }

  customElements.define("step-lists", StepLists);
}
