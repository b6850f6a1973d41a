// <scaling-chart>: how much faster k devices are than one, as the cost model of stage 8 says.
//
//     <scaling-chart link="NVLink between all" model="LeNet" batch="256 for all" overlap="yes" devices="64">
//     <figure>a picture, for paper and for browsers without scripts</figure>
//     <script type="application/json">what `cargo xtask scaling` wrote</script>
//     </scaling-chart>
//
// Stage 8's own functions decided what a step takes, and its program measured it; `tests/xtask/src/scaling` says how
// it is written down. Here it is read and drawn.
//
// This file has four parts: what is read, what is said, what is drawn, and the element. What it shares with
// other figures is in interactive-figure.js.
"use strict";

{
  const { shape } = InteractiveFigure;

  // ---- What is read: { links, panels: [{ link, model, batch, devices, samples, compute, with_overlap, … }] }

  // One for each entry of the menus: what devices have in common, and `ways` with or without overlap.
  const choices = ({ panels }) => panels.flatMap((panel) =>
    [["yes", panel.with_overlap], ["no", panel.without_overlap]].map(([overlap, ways]) => ({ ...panel, overlap, ways })));

  const alike = (a, b) => ["link", "model", "batch"].every((key) => a[key] === b[key]);

  // The way of most images a second, on the number of devices at this place of the lists.
  const best = ({ ways }, step) => ways.reduce((best, way) => (way.speed_up[step] > best.speed_up[step] ? way : best));

  // ---- What is said

  // Three digits, of small numbers two.
  function digits(number) {
    if (number >= 99.95) return Math.round(number).toLocaleString("en-US");
    if (number >= 9.995) return number.toFixed(1);
    if (number >= 0.0995 || number === 0) return number.toFixed(2);
    return number.toPrecision(2);
  }

  function percent(part) {
    if (part > 0 && part < 0.001) return "<\u00a00.1\u00a0%";
    return `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)}\u00a0%`;
  }

  const count = (n, thing) => `${n.toLocaleString("en-US")} ${thing}${n === 1 ? "" : "s"}`;

  // "64 devices in 8 hosts, 4 images on each, which take 1.20 ms."
  function reading(panel, { each }, step) {
    const devices = panel.devices[step];
    const images = count(panel.samples[step], "image");
    const compute = `${digits(panel.compute[step])}\u00a0ms`;
    if (devices === 1) return `1 device, ${images}: ${compute}. It waits for nobody.`;
    const hosts = each && devices > each ? ` in ${count(Math.ceil(devices / each), "host")}` : "";
    const { way, speed_up, measured_speed_up } = best(panel, step);
    const times = digits(speed_up[step]);
    const seen = measured_speed_up ? ` (measured: ${digits(measured_speed_up[step])})` : "";
    const verdict = speed_up[step] < 1
      ? `Slower than one device, whatever the way: with ${way} ${times} times its images a second`
      : `Fastest with ${way}: ${times} times one device's images a second`;
    return `${count(devices, "device")}${hosts}, ${images} on each, which take ${compute}. ${verdict}${seen}.`;
  }

  function assumptions({ assumed }, { each, wires }) {
    const costs = ({ name, bandwidth, latency }) =>
      `${name}, ${bandwidth}\u00a0GB/s and ${latency}\u00a0µs a message`;
    const links = each
      ? `${each} devices in a host, between them ${costs(wires[0])}; between hosts ${costs(wires[1])}`
      : `between any two devices ${costs(wires[0])}`;
    const { operations, memory, fixed } = assumed;
    return `Assumed, not measured: a device sustains ${operations}\u00a0TFLOP/s, reads and writes ${memory}\u00a0TB/s, `
      + `and needs ${fixed}\u00a0ms a step beside that; ${links}.`;
  }

  // What was measured, and where.
  function place({ measured_on }, { on, links, notes }, step) {
    const [latency, bandwidth] = links[step]?.map(digits) ?? [];
    const link = latency ? `; a message takes ${latency}\u00a0µs, and goes at ${bandwidth}\u00a0GB/s` : "";
    const note = notes[step] ? ` Note: ${notes[step]}.` : "";
    return "Marks were measured; lines are predicted from what devices take by themselves, and messages: on "
      + `${on[step]} of ${measured_on}${link}.${note}`;
  }

  // ---- What is drawn

  const NAME = 15;
  const TOP = 30;
  const FOOT = 44;

  // Both axes go by factors. Sizes in pixels, so that letters stay readable on a telephone.
  function layout(panel, panels, width) {
    const wide = width >= 600;
    const { devices } = panel;
    const most = devices.at(-1);
    // With and without overlap there is one scale.
    const all = panels.filter((other) => alike(other, panel)).flatMap(({ ways }) =>
      ways.flatMap(({ speed_up, measured_speed_up = [] }) => [...speed_up, ...measured_speed_up]));
    const high = Math.max(most, ...all);
    const base = high / Math.min(1, ...all) > 20 ? 10 : 2;
    const low = base ** Math.floor(Math.log(Math.min(1, ...all)) / Math.log(base) + 1e-9);
    const [left, right] = [wide ? 50 : 40, width - (wide ? 54 : 44)];
    const floor = TOP + (wide ? 260 : 200);
    // Where marks stand side by side, the first and the last have room.
    const edge = panel.on ? 24 : 0;
    const scale = (value, from, to) => Math.log(value / from) / Math.log(to / from);
    return {
      wide, most, low, high, base, left, right, floor, height: floor + FOOT,
      x: (devices) => left + edge + scale(devices, 1, most) * (right - left - 2 * edge),
      y: (times) => floor - scale(times, low, high) * (floor - TOP),
    };
  }

  function drawAxes({ devices }, { low, high, base, left, right, floor, x, y }) {
    const shapes = [shape("text", { class: "small", x: 0, y: 14 }, "times one device's images a second")];
    for (let times = low; times <= high * 1.001; times *= base) {
      shapes.push(
        shape("path", { class: "tick", d: `M${left} ${y(times)}H${right}` }),
        shape("text", { class: "small up", x: left - 6, y: y(times) + 4, "text-anchor": "end" },
          Number(times.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 })),
      );
    }
    // Every second one where they would touch.
    const step = devices.length > 1 && x(devices[1]) - x(devices[0]) < 34 ? 2 : 1;
    devices.forEach((number, index) => {
      shapes.push(shape("path", { class: "tick", d: `M${x(number)} ${floor}v5` }));
      if (index % step) return;
      const middle = { x: x(number), y: floor + 19, "text-anchor": "middle" };
      shapes.push(shape("text", { class: "small along", ...middle }, number.toLocaleString("en-US")));
    });
    const middle = { x: (left + right) / 2, y: floor + 36, "text-anchor": "middle" };
    return [...shapes, shape("text", { class: "small", ...middle }, "devices")];
  }

  const WIDEST = ["series-3", "series-1", "series-2", "series-4"];

  function drawCurves({ devices, ways }, { x, y, most }) {
    const path = ({ speed_up }) => devices.map((number, i) => `${x(number)} ${y(speed_up[i])}`).join("L");
    return [
      shape("path", { class: "ideal", d: `M${x(1)} ${y(1)}L${x(most)} ${y(most)}` }),
      ...ways.map((way, i) => shape("path", { class: `curve series-${i + 1}`, d: `M${path(way)}` }))
        // The widest below.
        .sort((a, b) => WIDEST.indexOf(a.classList[1]) - WIDEST.indexOf(b.classList[1])),
    ];
  }

  // A circle, a square, a triangle, a diamond: colours are not needed to tell them apart.
  const MARKS = ["M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", "M-5-5h10v10h-10z", "M0-6l6 11h-12z", "M0-7l7 7-7 7-7-7z"];

  // Side by side where they would hide each other.
  function drawMarks({ devices, ways }, { x, y }) {
    return ways.flatMap(({ measured_speed_up: measured = [] }, i) => measured.map((times, step) => {
      const beside = devices[step] === 1 ? 0 : (i - (ways.length - 1) / 2) * 13;
      const at = `translate(${x(devices[step]) + beside} ${y(times)})`;
      return shape("path", { class: `mark series-${i + 1}`, d: MARKS[i % 4], transform: at });
    }));
  }

  // Each at the end of its line, and so far apart that none stands on another.
  function drawNames({ ways }, { right, floor, most, y }) {
    const names = [
      { words: "ideal", classes: "name", at: y(most) },
      ...ways.map(({ way, speed_up }, i) => ({ words: way, classes: `name series-${i + 1}`, at: y(speed_up.at(-1)) })),
    ].sort((a, b) => a.at - b.at);
    let above = -Infinity;
    for (const name of names) above = name.at = Math.max(name.at, above + NAME);
    let below = floor + NAME;
    for (const name of names.reverse()) below = name.at = Math.min(name.at, below - NAME);
    return names.map(({ words, classes, at }) => shape("text", { class: classes, x: right + 6, y: at + 4 }, words));
  }

  // A bar: what a device computes, and above it what it waits.
  const [BAR, DEEP, TORN] = [96, 44, "l5.5-6l5.5 6".repeat(4)];
  // A bar that is so many times as long as the shortest would leave nothing of that.
  const LONGEST = 6;

  function drawBar(compute, step, longest, series) {
    const svg = shape("svg", { viewBox: `0 0 64 ${BAR}`, preserveAspectRatio: "xMidYMax meet", "aria-hidden": "true" });
    const room = BAR - 8;
    const high = (milliseconds) => (milliseconds / longest) * room;
    const middle = BAR - high(compute);
    const fits = step <= longest;
    const top = fits ? `V${BAR - high(step)}h${DEEP}` : `V8${TORN}`;
    svg.append(
      shape("path", { class: `bar series-${series}${fits ? "" : " torn"}`, d: `M10 ${middle}${top}V${middle}z` }),
      shape("path", { class: "bar compute", d: `M10 ${BAR}V${middle}h${DEEP}V${BAR}z` }),
    );
    return svg;
  }

  // ---- The element

  const PARTS = `
    <div class="controls">
      <div>
        <label>Link <select class="link"></select></label>
        <label>Model <select class="model"></select></label>
        <label>Batch <select class="batch"></select></label>
        <label>Overlap <select class="overlap"></select></label>
      </div>
      <div>
        <button type="button" class="first">One</button>
        <button type="button" class="back">Fewer</button>
        <button type="button" class="next">More</button>
        <button type="button" class="play">Play</button>
      </div>
    </div>
    <div class="stage" tabindex="0" role="group" aria-label="The curves. Arrow keys change the number of devices that is
      read off, space plays, Home and End jump.">
      <svg class="chart" role="img"></svg>
    </div>
    <p class="now" aria-live="polite"></p>
    <table><thead></thead><tbody></tbody></table>
    <p class="key"></p>
    <p class="key told"></p>`;

  class ScalingChart extends InteractiveFigure {
    static PARTS = PARTS;
    static MENUS = { link: "link", model: "model", batch: "batch", overlap: "overlap" };

    connectedCallback() {
      if (this.parts) return;
      // What was chosen last in each menu, also where it cannot be had.
      this.wanted = { devices: Number(this.getAttribute("devices") ?? 1) };
      super.connectedCallback();
      const stage = this.part("stage");
      stage.addEventListener("pointerdown", (event) => this.point(event));
      stage.addEventListener("pointermove", (event) => event.buttons === 1 && this.point(event));
    }

    get choices() {
      return (this.panels ??= choices(this.data));
    }

    get last() {
      return this.panel.devices.length - 1;
    }

    get seconds() {
      return 0.8;
    }

    // A menu has what there is for those before it.
    choose() {
      let left = this.choices;
      for (const [name, key] of Object.entries(this.constructor.MENUS)) {
        const menu = this.part(name);
        if (menu.value !== this.panel?.[key]) this.wanted[name] = menu.value;
        const values = [...new Set(left.map((panel) => panel[key]))];
        if (values.join() !== [...menu.options].map(({ value }) => value).join()) {
          menu.replaceChildren(...values.map((value) => new Option(value, value)));
        }
        menu.value = values.includes(this.wanted[name]) ? this.wanted[name] : values[0];
        left = left.filter((panel) => panel[key] === menu.value);
      }
      this.start(left[0]);
      const { devices } = this.wanted;
      this.go(Math.max(0, this.panel.devices.findLastIndex((number) => number <= devices)));
      this.wanted.devices = devices;
    }

    start(panel) {
      this.panel = panel;
      this.link = this.data.links.find(({ name }) => name === panel.link);
      this.drawn = undefined;
      this.explain();
    }

    moveTo(step) {
      super.moveTo(step);
      this.wanted.devices = this.panel.devices[this.step];
    }

    // The number of devices that is nearest to the pointer.
    point({ clientX }) {
      const { left } = this.part("chart").getBoundingClientRect();
      const far = this.panel.devices.map((number) => Math.abs(this.place.x(number) - (clientX - left)));
      this.go(far.indexOf(Math.min(...far)));
    }

    // What does not depend on the number of devices.
    explain() {
      const head = document.createElement("tr");
      const names = this.panel.ways.map(({ way }, i) => {
        const name = document.createElement("th");
        name.scope = "col";
        name.className = `series-${i + 1}`;
        name.textContent = way;
        return name;
      });
      head.append(document.createElement("td"), ...names);
      this.parts.querySelector("thead").replaceChildren(head);
      this.part("key").innerHTML = `<b>Ideal</b>: k devices are k times as fast as one. Bars: what a device
        <span class="swatch compute"></span>computes in a step, and above it, in the way's colour, how long it waits for
        the others; a torn bar is longer than there is room for. <b>Efficiency</b>: speed-up divided by devices.`;
    }

    tell() {
      const { panel, step, data, link } = this;
      const now = this.part("now");
      // Nobody could listen to all of it.
      now.ariaLive = this.timer ? "off" : "polite";
      now.textContent = reading(panel, link, step);
      this.part("told").textContent = link.measured ? place(data, panel, step) : assumptions(data, link);
      this.tabulate();
      const width = this.part("stage").clientWidth;
      // On paper it has none.
      if (width === 0) return;
      if (this.drawn !== width) this.draw(width);
      this.drawn = width;
      const { x, floor } = this.place;
      this.cursor.setAttribute("d", `M${x(panel.devices[step])} ${TOP - 4}V${floor + 5}`);
      this.parts.querySelectorAll(".along").forEach((number) => {
        number.classList.toggle("chosen", number.textContent === panel.devices[step].toLocaleString("en-US"));
      });
    }

    tabulate() {
      const { step } = this;
      const { ways, devices, compute } = this.panel;
      const steps = ways.map((way) => way.step[step]);
      const longest = Math.min(Math.max(...steps), LONGEST * Math.min(...steps));
      const rows = [
        ["bars", "", (way, i) => drawBar(compute[step], way.step[step], longest, i + 1)],
        ["step", "A step, ms", (way) => digits(way.step[step])],
        ["exposed", "Waiting, ms", (way) => digits(way.exposed[step])],
        ["speed-up", "Speed-up", (way) => digits(way.speed_up[step])],
        ["efficiency", "Efficiency", (way) => percent(way.speed_up[step] / devices[step])],
        ...(this.link.measured ? [
          ["measured", "Measured, ms", (way) => digits(way.measured[step])],
          ["measured-speed-up", "Speed-up, measured", (way) => digits(way.measured_speed_up[step])],
        ] : []),
      ];
      this.parts.querySelector("tbody").replaceChildren(...rows.map(([name, words, value]) => {
        const row = document.createElement("tr");
        row.className = name;
        const head = document.createElement("th");
        head.scope = "row";
        head.textContent = words;
        const cells = ways.map((way, i) => {
          const cell = document.createElement("td");
          cell.append(value(way, i));
          return cell;
        });
        row.append(head, ...cells);
        return row;
      }));
    }

    // All that stays while devices are added.
    draw(width) {
      const { panel } = this;
      this.place = layout(panel, this.choices, width);
      this.cursor = shape("path", { class: "cursor" });
      const chart = this.part("chart");
      chart.setAttribute("width", width);
      chart.setAttribute("height", this.place.height);
      const overlap = panel.overlap === "yes" ? "with" : "without";
      chart.setAttribute("aria-label", `${panel.name}, ${panel.batch}; ${panel.link}; ${overlap} overlap: times one
        device's images a second on 1 to ${panel.devices.at(-1)} devices`.replace(/\s+/g, " "));
      chart.replaceChildren(...drawAxes(panel, this.place), this.cursor, ...drawCurves(panel, this.place),
        ...drawMarks(panel, this.place), ...drawNames(panel, this.place));
    }
  }

  customElements.define("scaling-chart", ScalingChart);
}
