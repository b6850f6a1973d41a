// <pipeline-schedules>: who does what when, for a schedule of stage 6.
//
//     <pipeline-schedules kind="1F1B" stages="4" micro-batches="8">
//     <figure>a picture, for paper and for browsers without scripts</figure>
//     <script type="application/json">what `cargo xtask schedules` wrote</script>
//     </pipeline-schedules>
//
// The course's own generator, checker and prediction decided what is shown, down to the words with which a
// schedule is refused; `tests/xtask/src/schedules` says how it is written down. Here it is read and drawn.
//
// This file has four parts: what is read, what is said, what is drawn, and the element. What it shares with
// other figures is in interactive-figure.js.
"use strict";

{
  // All of a step in this time, but no part of it too fast or too slow to be seen.
  const SECONDS_A_RUN = 16;
  const [FASTEST, SLOWEST] = [0.12, 0.6];

  const { shape } = InteractiveFigure;

  // ---- What is read: { kind, stages, micro_batches, units, …, rows: [[letters, micro-batches, starts, …]] }

  // A stage's step from beginning to end, without gaps: { start, end, kept }, and { pass, microBatch } where
  // it is not idle. `kept` is the number of micro-batches of which it keeps activations meanwhile.
  function cellsOf({ passes }, { units }, [letters, microBatches, starts, activations]) {
    const cells = [];
    let [time, kept] = [0, 0];
    [...letters].forEach((letter, i) => {
      const pass = passes.find((pass) => pass.letter === letter);
      const [start, end] = [starts[i], starts[i] + pass.units];
      const after = activations[i];
      if (start > time) cells.push({ start: time, end: start, kept });
      // Going forward, an activation is alive from the beginning on; going backward, to the end.
      cells.push({ pass, microBatch: microBatches[i], start, end, kept: isForward(pass) ? after : kept });
      [time, kept] = [end, after];
    });
    if (units > time) cells.push({ start: time, end: units, kept });
    return cells;
  }

  const isForward = ({ letter }) => letter.toUpperCase() === "F";

  const shortest = ({ passes }) => Math.min(...passes.map(({ units }) => units));

  // ---- What is said

  const count = (n, thing, things = `${thing}s`) => `${n} ${n === 1 ? thing : things}`;

  const percent = (part) => `${(100 * part).toFixed(1)} %`;

  const inShort = ({ kind, stages, micro_batches }) =>
    `${kind}, ${count(stages, "stage")}, ${count(micro_batches, "micro-batch", "micro-batches")}`;

  // "Stage 1, micro-batch 2, backward, from 7 to 9"
  function name(stage, { pass, microBatch, start, end }, { chunks }) {
    const what = pass
      ? [`micro-batch ${microBatch}`, ...(chunks > 1 ? [`chunk ${pass.chunk}`] : []), pass.name]
      : ["idle"];
    return [`Stage ${stage}`, ...what, `from ${start} to ${end}`].join(", ");
  }

  function describe(stage, cell, look) {
    return `${name(stage, cell, look)}. Alive here: ${count(cell.kept, "activation")}.`;
  }

  // ---- What is drawn

  const NARROWEST = 3.5;
  const HEAD = 22;
  const AXIS = 26;
  // For the frame of what is at the very beginning or end.
  const EDGE = 2;

  // Stages are rows, time goes right; sizes in pixels, so that letters stay readable on a telephone. What
  // does not fit is scrolled to: the shortest pass is at least so many pixels wide.
  function layout(look, plan, alike, width) {
    const wide = width >= 600;
    // On one scale, what is sooner done is shorter. A narrow page has no room for that.
    const longest = Math.max(plan.units, ...(wide ? alike.map(({ units }) => units) : []));
    const names = wide ? 58 : 22;
    const peaks = wide ? 56 : 32;
    const room = width - names - peaks;
    const unit = Math.min(40, Math.max(NARROWEST / shortest(look), (room - 2 * EDGE) / longest));
    const [high, gap] = wide ? [26, 5] : [22, 4];
    const most = Math.max(...plan.peaks);
    const level = Math.max(4, Math.min(14, 72 / most));
    const bottom = HEAD + plan.stages * (high + gap) - gap;
    const floor = bottom + AXIS + 26 + most * level;
    return {
      wide, names, peaks, unit, high, most, level, bottom, floor,
      shown: Math.min(room, longest * unit + 2 * EDGE), length: longest * unit + 2 * EDGE, height: floor + 8,
      x: (time) => EDGE + time * unit,
      y: (stage) => HEAD + stage * (high + gap),
    };
  }

  // Names of the stages, and of the curve its name, its floor and its ceiling. They stay where they are when
  // the drawing is scrolled.
  function drawNames(plan, { wide, names, high, y, most, level, floor }) {
    const right = { x: names - 8, "text-anchor": "end" };
    const stage = (_, stage) =>
      shape("text", { class: "stage-name", ...right, y: y(stage) + high / 2 + 5 }, wide ? `stage ${stage}` : stage);
    return [
      ...plan.rows.map(stage),
      shape("text", { class: "small", ...right, y: floor + 4 }, 0),
      shape("text", { class: "small", ...right, y: floor - most * level + 4 }, most),
      shape("text", { class: "small curve", x: names + EDGE, y: floor - most * level - 8 }),
    ];
  }

  function drawPeaks(plan, { peaks, high, y }) {
    const right = { x: peaks - 2, "text-anchor": "end" };
    return [
      shape("text", { class: "small", ...right, y: HEAD - 8 }, "peak"),
      ...plan.peaks.map((value, stage) =>
        shape("text", { class: "peak", ...right, y: y(stage) + high / 2 + 5 }, value)),
    ];
  }

  // As large as all numbers of a pass can be in its cell; 0 where they would be too small to read.
  function letterSize(width, microBatches) {
    const digits = String(microBatches - 1).length;
    const size = Math.min(13, (width - 1.2) / (0.58 * digits));
    return size >= 11 ? size : 0;
  }

  function drawCells(look, plan, rows, place) {
    const { x, y, high, unit } = place;
    return rows.flatMap((cells, stage) => cells.flatMap((cell) => {
      const { pass, microBatch, start, end } = cell;
      const box = { x: x(start), y: y(stage), width: x(end) - x(start), height: high };
      const words = shape("title", {}, name(stage, cell, look));
      if (!pass) {
        const idle = shape("rect", { class: "cell idle", ...box });
        idle.append(words);
        return [idle];
      }
      // A hair apart.
      const rect = shape("rect", { class: classOf(pass), ...box, width: box.width - (unit < 8 ? 0.5 : 1) });
      rect.append(words);
      const size = letterSize(box.width, plan.micro_batches);
      if (size === 0) return [rect];
      const middle = { x: (x(start) + x(end) - 1) / 2, y: y(stage) + high / 2 + size * 0.36 };
      const number = { class: pass.chunk > 0 ? "number second" : "number", "font-size": size, ...middle };
      return [rect, shape("text", number, microBatch)];
    }));
  }

  const classOf = ({ letter, chunk }) =>
    `cell series-${"FBW".indexOf(letter.toUpperCase()) + 1}${chunk > 0 ? " second" : ""}`;

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

  // What a stage keeps over time.
  function drawCurve(cells, { x, floor, level, most, length }) {
    const upTo = (value) => floor - value * level;
    const outline = cells.map(({ kept, end }) => `V${upTo(kept)}H${x(end)}`).join("");
    return [
      ...[floor + 0.5, upTo(most) - 0.5].map((y) => shape("path", { class: "tick", d: `M${x(0)} ${y}H${length}` })),
      shape("path", { class: "kept series-1", d: `M${x(0)} ${floor}${outline}V${floor}Z` }),
    ];
  }

  // The time that is told about, in the rows and in the curve.
  function drawCursor(time, tick, { x, bottom, floor, most, level }) {
    const band = (top, bottom) => `M${x(time)} ${top}H${x(time + tick)}V${bottom}H${x(time)}Z`;
    const d = band(HEAD - 5, bottom + 5) + band(floor - most * level, floor);
    return shape("path", { class: "cursor", d });
  }

  // The cell that is told about, and where else its micro-batch is.
  function drawPointed(rows, stage, pointed, { x, y, high }) {
    const frame = (row, { start, end }, classes, out = 0) => {
      const [width, height] = [x(end) - x(start) - 1 + 2 * out, high + 2 * out];
      return shape("rect", { class: classes, x: x(start) - out, y: y(row) - out, width, height });
    };
    const same = rows.flatMap((cells, row) =>
      cells.filter((cell) => cell.pass && pointed.pass && cell.microBatch === pointed.microBatch)
        .map((cell) => frame(row, cell, "same")));
    return [...same, frame(stage, pointed, "pointed", 1)];
  }

  // ---- The element

  const PARTS = `
    <div class="controls">
      <div>
        <label>Schedule <select class="kind"></select></label>
        <label>Stages <select class="stages"></select></label>
        <label>Micro-batches <select class="micro-batches"></select></label>
      </div>
      <div>
        <button type="button" class="first">First</button>
        <button type="button" class="back">Back</button>
        <button type="button" class="next">Step</button>
        <button type="button" class="play">Play</button>
      </div>
    </div>
    <dl>
      <div><dt>Bubble</dt><dd class="bubble"></dd></div>
      <div><dt>Time for the step</dt><dd class="units"></dd></div>
      <div><dt>Smallest channel capacity</dt><dd class="capacity"></dd></div>
    </dl>
    <div class="stage" tabindex="0" role="group" aria-label="The stages and what they do. Arrow keys go through time
      and from stage to stage, space plays, Home and End jump.">
      <svg class="names" aria-hidden="true"></svg>
      <div class="plot" tabindex="-1"><svg role="img"></svg></div>
      <svg class="peaks" aria-hidden="true"></svg>
    </div>
    <p class="now" aria-live="polite"></p>
    <ul class="legend"></ul>
    <p class="key"></p>`;

  class PipelineSchedules extends InteractiveFigure {
    static PARTS = PARTS;
    static MENUS = { kind: "kind", stages: "stages", "micro-batches": "micro_batches" };

    connectedCallback() {
      if (this.parts) return;
      super.connectedCallback();
      const plot = this.part("plot");
      for (const kind of ["pointermove", "pointerdown"]) {
        plot.addEventListener(kind, (event) => this.point(event));
      }
    }

    get choices() {
      return this.data.plans;
    }

    start(plan) {
      this.plan = plan;
      this.look = this.data.shapes.find(({ kind }) => kind === plan.kind);
      this.rows = plan.rows?.map((row) => cellsOf(this.look, plan, row));
      this.row = Math.min(this.row ?? 0, plan.stages - 1);
      this.tick = shortest(this.look);
      this.drawn = undefined;
      this.explain();
    }

    // A step of this figure is the time of the shortest pass.
    get last() {
      return this.rows ? this.plan.units / this.tick - 1 : 0;
    }

    get seconds() {
      return Math.max(FASTEST, Math.min(SLOWEST, SECONDS_A_RUN / (this.last + 1)));
    }

    get keys() {
      return { ArrowUp: () => this.goTo(this.row - 1), ArrowDown: () => this.goTo(this.row + 1) };
    }

    goTo(row, step = this.step) {
      this.row = Math.max(0, Math.min(this.plan.stages - 1, row));
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
      const row = this.rows.findIndex((_, row) => clientY - top >= y(row) && clientY - top < y(row) + high);
      if (row < 0 || step < 0 || step > this.last) return;
      if (row !== this.row || step !== this.step || this.timer) this.goTo(row, step);
    }

    // Of what the numbers are, and which colour is what.
    explain() {
      const { plan, look } = this;
      this.parts.classList.toggle("refused", plan.refused !== undefined);
      this.part("bubble").textContent = this.rows ? percent(plan.bubble) : "–";
      this.part("units").textContent = this.rows ? count(plan.units, "unit") : "–";
      this.part("capacity").textContent = this.rows ? count(plan.capacity, "message") : "–";
      // A colour, and what it means.
      const entry = (classes, words) => {
        const item = document.createElement("li");
        const swatch = shape("svg", { viewBox: "0 0 16 12", "aria-hidden": "true" });
        swatch.append(shape("rect", { class: classes, x: 0.5, y: 0.5, width: 15, height: 11 }));
        item.append(swatch, words);
        return item;
      };
      const passes = look.passes.map(({ letter, name, chunk, units }) => entry(
        classOf({ letter, chunk }),
        `${look.chunks > 1 ? `chunk ${chunk}, ` : ""}${name}: ${count(units, "unit")}`,
      ));
      this.part("legend").replaceChildren(...passes, entry("cell idle", "idle: the bubble"));
      const halves = look.passes.some(({ letter }) => letter === "W");
      const more = [
        ...(look.chunks > 1 ? [", each of one chunk, and so half as large"] : []),
        ...(halves ? [". Activations are alive until W has used them"] : []),
      ];
      this.part("key").innerHTML = `A number is a micro-batch, framed wherever it is the same. A unit of time is
        a stage's forward pass. <b>Peak</b>: the most activations that a stage keeps alive at
        once${more.join("")}.`;
    }

    tell() {
      const { plan, row, step } = this;
      const now = this.part("now");
      // Nobody could listen to all of it.
      now.ariaLive = this.timer ? "off" : "polite";
      // What is still to come is dimmed.
      if (this.timer) this.part("stage").classList.add("playing");
      if (!this.rows) {
        now.textContent = plan.refused;
        return;
      }
      const width = this.part("stage").clientWidth;
      const cells = this.rows[row];
      const time = step * this.tick;
      const cell = cells.find(({ end }) => time < end);
      now.textContent = describe(row, cell, this.look);
      // On paper it has none.
      if (width === 0) return;
      if (this.drawn !== width) this.draw(width);
      this.drawn = width;
      const { place } = this;
      const { x, floor, length } = place;
      const end = x(time + this.tick);
      this.cursor.replaceChildren(
        shape("rect", { class: "veil", x: end, y: 0, width: Math.max(0, length - end), height: floor }),
        ...drawCurve(cells, place),
        drawCursor(time, this.tick, place),
        ...drawPointed(this.rows, row, cell, place),
      );
      const whose = this.look.chunks > 1 ? "activations of chunks" : "activations";
      this.part("curve").textContent = `${whose} alive on stage ${row}`;
      this.part("names").querySelectorAll(".stage-name").forEach((name, stage) => {
        name.classList.toggle("chosen", stage === row);
      });
      this.follow(x(cell.start), x(cell.end));
    }

    // All that stays while time passes.
    draw(width) {
      const { plan, look, rows } = this;
      // Others of this size, but the first kind, which takes several times as long.
      const alike = this.data.plans.filter(({ kind, stages, micro_batches, units }) =>
        units && kind !== this.data.shapes[0].kind
        && stages === plan.stages && micro_batches === plan.micro_batches);
      this.place = layout(look, plan, alike, width);
      const { names, shown, length, peaks, height } = this.place;
      this.cursor = shape("g", {});
      const fill = (svg, width, shapes) => {
        svg.setAttribute("width", width);
        svg.setAttribute("height", height);
        svg.style.width = `${width}px`;
        svg.replaceChildren(...shapes);
      };
      const plot = this.part("plot");
      plot.style.width = `${shown}px`;
      const drawing = [...drawCells(look, plan, rows, this.place), ...drawAxis(plan, this.place), this.cursor];
      fill(plot.firstElementChild, length, drawing);
      plot.firstElementChild.setAttribute("aria-label", `${inShort(plan)}: bubble ${percent(plan.bubble)}`);
      fill(this.part("names"), names, drawNames(plan, this.place));
      fill(this.part("peaks"), peaks, drawPeaks(plan, this.place));
    }

    // Where all of it does not fit, what is told about is scrolled to.
    follow(left, right) {
      const plot = this.part("plot");
      const { scrollLeft, clientWidth } = plot;
      if (left < scrollLeft) plot.scrollLeft = Math.max(0, left - 20);
      if (right > scrollLeft + clientWidth) plot.scrollLeft = right + 20 - clientWidth;
    }
  }

  customElements.define("pipeline-schedules", PipelineSchedules);
}
