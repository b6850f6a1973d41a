// <step-lists> in Chromium: what it shows is what stage 6 says.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { test } from "node:test";
import { contrast, paint, pictureOnly as picture, screenshot, smallTexts, tabStops, visit } from "./browser.js";
import { data } from "./site.js";

const catalogue = data("step-lists");
const { shapes, plans } = catalogue;
const { site, open, damaged, still } = visit("step-lists");
const pictureOnly = picture("step-lists", /GPipe.*1F1B.*ZB-H1/s);

const figure = (page) => page.locator("step-lists");
const menu = (page, label) => figure(page).locator(".controls").getByLabel(label);
const button = (page, name) => figure(page).getByRole("button", { name, exact: true });
const plan = (kind, stages, microBatches, links = "fast") => plans.find((plan) =>
  plan.kind === kind && plan.stages === stages && plan.micro_batches === microBatches && plan.links === links);
const called = ({ kind, stages, micro_batches, links }) => `${kind}, ${stages} × ${micro_batches}, ${links}`;
// One of each kind, of a size that all of them have.
const SOME = shapes.map(({ kind }) => plan(kind, 4, 8));
// And one whose stages have two streams.
const STREAMS = [...SOME, plan("1F1B", 4, 8, "slow"), plan("interleaved 1F1B, 2 chunks", 2, 4, "slow")];

async function choose(page, plan) {
  for (const { field, name } of catalogue.menus) {
    await menu(page, name).selectOption(String(plan[field]));
  }
}

// ---- What the data says should be seen.

const rounded = (number) => String(Math.round(100 * number) / 100);

// The spans in the text of a lane: "F3.1:2 +5 B0".
function spans(text, usual) {
  let time = 0;
  return text.split(" ").flatMap((token) => {
    if (token === "") return [];
    if (/^[+-]/.test(token)) {
      time += Number(token);
      return [];
    }
    const [what, length] = token.split(":");
    const start = time;
    time += length === undefined ? usual(what, time) : Number(length);
    return [{ what, start, end: time }];
  });
}

// Every cell of every lane: its words, when it is, and whose it is; and the memory of every row.
function everything({ kind, rows, units }, { row: word, shapes, states, held: kinds } = catalogue) {
  const { labels, number: shown } = shapes.find((shape) => shape.kind === kind);
  const labelOf = (what) => labels.find(({ letter }) => letter === what[0]);
  const lanes = rows.flatMap((texts, row) => texts.slice(0, 2).map((text, stream) => {
    const cells = [];
    let time = 0;
    const add = (words, start, end, more) =>
      cells.push({ row, stream, start, end, words: `${word[0].toUpperCase()}${word.slice(1)} ${row}, ${words}, from ${rounded(start)} to ${rounded(end)}`, ...more });
    const idle = (end) => end > time && add(["idle", "no communication"][stream], time, end, {});
    for (const { what, start, end } of spans(text, (what) => labelOf(what).units)) {
      idle(start);
      const { name, numbers: meanings } = labelOf(what);
      const numbers = what.slice(1).split(".");
      const which = meanings.map((meaning, i) => `${meaning} ${numbers[i] || 0}, `);
      const number = meanings.includes(shown) ? numbers[meanings.indexOf(shown)] : undefined;
      add(`${which.join("")}${name}`, start, end, { work: true, number });
      time = Math.max(time, end);
    }
    idle(units);
    return { row, stream, cells };
  }));
  const streams = [0, 1].filter((stream) => lanes.some((lane) => lane.stream === stream && lane.cells.some(({ work }) => work)));
  const memory = rows.map(([computing, , memory]) => {
    const bounds = spans(computing, (what) => labelOf(what).units).flatMap(({ start, end }) => [start, end]);
    const next = (_, time) => [...bounds, units].find((bound) => bound > time) - time;
    return spans(memory, next).map(({ what, start, end }) => ({ state: states[what], start, end }));
  });
  const holds = (row, time) => {
    const { state } = memory[row].find(({ end }) => time < end);
    const parts = kinds.flatMap(({ name }, i) => (state[i] > 0 ? [`${name} ${rounded(state[i])}`] : []));
    return `Holds ${rounded(state.reduce((a, b) => a + b))}: ${parts.join(", ")}.`;
  };
  const shownLanes = lanes.filter(({ stream }) => streams.includes(stream));
  // Of several that overlap, the last is on top.
  const told = (lane, time) =>
    `${lane.cells.findLast(({ start, end }) => start <= time && time < end).words}. ${holds(lane.row, time)}`;
  return { lanes: shownLanes, cells: shownLanes.flatMap(({ cells }) => cells), memory, told };
}

const isWork = ({ work }) => work;

// Times of this figure's data are multiples of a quarter of a unit.
function tick(plan) {
  const times = [plan.units, ...everything(plan).cells.map(({ start }) => start)];
  return [4, 3, 2, 1, 0.5, 0.25].find((tick) => times.every((time) => Number.isInteger(time / tick)));
}

const moments = (plan) => Array.from({ length: Math.round(plan.units / tick(plan)) }, (_, i) => i * tick(plan));

// ---- What a reader sees.

const now = (page) => figure(page).locator(".now").innerText();

const shown = (page) =>
  figure(page).evaluate((element) => {
    const text = (selector) => element.querySelector(selector).textContent;
    const texts = (selector) => [...element.querySelectorAll(selector)].map((part) => part.textContent);
    const box = (part) => {
      const { x, y, width, height } = part.getBBox();
      return { left: x, right: x + width, top: y, bottom: y + height };
    };
    const boxes = (selector) =>
      [...element.querySelectorAll(selector)].map((part) => ({ text: part.textContent, ...box(part) }));
    return {
      facts: texts("dd"),
      chosen: [...element.querySelectorAll("select")].map(({ value }) => value),
      visible: element.querySelector(".stage").checkVisibility(),
      now: text(".now"),
      names: texts(".row-name"),
      peaks: texts(".stage .peak"),
      cells: boxes(".plot .cell"),
      numbers: boxes(".plot .number"),
      curve: text(".curve"),
      kept: [...element.querySelectorAll(".plot .kept")].map((path) => path.getAttribute("d")),
    };
  });

const near = (a, b) => Math.abs(a - b) < 0.02;

// The upper edge of an area: how high it is from one time to another.
function edge(path, unit, left, floor) {
  const points = path.slice(1, -1).split("L").map((point) => point.split(" ").map(Number));
  const upper = points.slice(0, points.length / 2);
  return upper.map(([x, y]) => [(x - left) / unit, floor - y]);
}

async function check(page, plan) {
  const seen = await shown(page);
  const what = called(plan);
  assert.deepEqual(seen.chosen, catalogue.menus.map(({ field }) => String(plan[field])));
  if (plan.refused) {
    assert.equal(seen.now, plan.refused);
    assert.equal(seen.visible, false, what);
    assert.deepEqual(seen.facts, catalogue.facts.map(() => "–"), what);
    return;
  }
  assert.ok(seen.visible, what);
  assert.deepEqual(seen.facts, plan.facts, what);
  assert.deepEqual(seen.names.map((name) => Number(name.replace("stage ", ""))), [...Array(plan.stages).keys()]);
  assert.deepEqual(seen.peaks, plan.peaks.map(rounded), what);

  // Every cell is there, at its time, in its lane, and lanes do not overlap.
  const { lanes, cells, memory, told } = everything(plan);
  assert.deepEqual(seen.cells.map(({ text }) => text), cells.map(({ words }) => words), what);
  assert.equal(lanes.length, plan.stages * (plan.links === "slow" ? 2 : 1), what);
  const first = seen.cells[0];
  const last = seen.cells[lanes[0].cells.length - 1];
  const unit = (last.left - first.left) / lanes[0].cells.at(-1).start;
  let [lane, top, bottom] = [undefined, 0, 0];
  seen.cells.forEach((box, i) => {
    const { words, start, end, row, stream } = cells[i];
    const gap = first.left + end * unit - box.right;
    assert.ok(near(box.left, first.left + start * unit) && gap > -0.02 && gap < 1.02, `${what}: ${words}`);
    if (lane !== `${row} ${stream}`) {
      assert.ok(box.top >= bottom, `${what}: ${words}`);
      [lane, top, bottom] = [`${row} ${stream}`, box.top, box.bottom];
    }
    assert.ok(near(box.top, top) && near(box.bottom, bottom), `${what}: ${words}`);
  });
  // A number is its cell's, in all cells of one size or in none, and within it.
  const sizes = new Map();
  for (const [i, cell] of cells.entries()) {
    if (cell.number === undefined) continue;
    const box = seen.cells[i];
    const middle = (box.left + box.right) / 2;
    const found = seen.numbers.filter(({ left, right, top, bottom }) =>
      left < middle && middle < right && (top + bottom) / 2 < box.bottom && (top + bottom) / 2 > box.top);
    if (found.length > 0) {
      assert.ok(found.some(({ text }) => text === cell.number), `${what}: ${cell.words}`);
      assert.ok(found.every(({ left, right }) => left > box.left - 0.6 && right < box.right + 0.6), `${what}: ${cell.words}`);
    }
    const size = `${cell.stream} ${(cell.end - cell.start).toFixed(2)}`;
    assert.equal(sizes.get(size) ?? found.length > 0, found.length > 0, `${what}: ${cell.words}`);
    sizes.set(size, found.length > 0);
  }

  // What is told, and the curve, are of the stage that is chosen.
  const stage = Number(/^Stage (\d+)/.exec(seen.now)[1]);
  assert.equal(seen.curve, `memory of stage ${stage}`);
  const all = lanes.filter(({ row }) => row === stage).flatMap((lane) => moments(plan).map((time) => told(lane, time)));
  assert.ok(all.includes(seen.now), `${what}: ${seen.now}`);
  // A kind above the other: the upper edge of the last is all that the stage holds.
  const heights = seen.kept.map((path) => edge(path, unit, first.left, 0));
  const floor = Number(seen.kept[0].slice(1, -1).split("L").at(-1).split(" ")[1]);
  const level = Math.max(...heights.at(-1).map(([, y]) => y + floor)) / Math.max(...memory[stage].map(({ state }) => state.reduce((a, b) => a + b)));
  heights.forEach((found, kind) => {
    const expected = memory[stage].flatMap(({ state, start, end }) => {
      const height = level * state.slice(0, kind + 1).reduce((a, b) => a + b);
      return [[start, height], [end, height]];
    });
    assert.equal(found.length, expected.length, what);
    found.forEach(([time, y], i) => {
      assert.ok(Math.abs(time - expected[i][0]) < 0.01 && Math.abs(y + floor - expected[i][1]) < 0.1, `${what}: curve of ${kind} at ${time}`);
    });
  });
}

// ---- The tests

test("the data has five kinds in every size", () => {
  const sizes = [2, 3, 4, 8].flatMap((p) => [1, 2, 4, 8, 12].map((m) => `${p} × ${m}`));
  const all = ["naive", "GPipe", "1F1B", "interleaved 1F1B, 2 chunks", "ZB-H1"]
    .flatMap((kind) => sizes.flatMap((size) => ["fast", "slow"].map((links) => `${kind}, ${size}, ${links}`)));
  assert.deepEqual(plans.map(called), all);
});

test("every schedule can be chosen, and all that is shown of it is the data's", async () => {
  await open({}, async (page) => {
    for (const plan of plans) {
      await choose(page, plan);
      await check(page, plan);
    }
  });
});

test("every schedule can be chosen with keys", async () => {
  await open({}, async (page) => {
    const seen = new Set();
    // Through all menus, the last one first: to the beginning of a menu, and then one further.
    const through = async ([{ field, name }, ...others]) => {
      const choices = new Set(plans.map((plan) => plan[field])).size;
      for (let choice = 0; choice < choices; choice++) {
        await menu(page, name).focus();
        await page.keyboard.press(choice === 0 ? "Home" : "ArrowDown");
        if (others.length > 0) {
          await through(others);
          continue;
        }
        const { chosen, facts, now } = await shown(page);
        const plan = plans.find((plan) => called(plan) === `${chosen[0]}, ${chosen[1]} × ${chosen[2]}, ${chosen[3]}`);
        if (plan.refused) assert.equal(now, plan.refused);
        else assert.deepEqual(facts, plan.facts, called(plan));
        seen.add(called(plan));
      }
    };
    await through(catalogue.menus);
    assert.equal(seen.size, plans.length);
  });
});

test("the pointer tells what every cell is", async () => {
  await open({}, async (page) => {
    for (const plan of STREAMS) {
      await choose(page, plan);
      // In a chapter the figure is far down, and the pointer goes only where the window is.
      await figure(page).locator(".plot").scrollIntoViewIfNeeded();
      const boxes = await figure(page).locator(".plot .cell").evaluateAll((cells) =>
        cells.map((cell) => {
          const { x, y, width, height } = cell.getBoundingClientRect();
          return [x, width, y + height / 2];
        }));
      const { lanes, cells, told } = everything(plan);
      for (const [i, { row, stream, start, end }] of cells.entries()) {
        const [x, width, y] = boxes[i];
        const lane = lanes.find((lane) => lane.row === row && lane.stream === stream);
        // The middle of the cell's moment in its middle.
        const time = Math.floor((start + end) / 2 / tick(plan)) * tick(plan);
        await page.mouse.move(x + (width * (time + tick(plan) / 2 - start)) / (end - start), y);
        assert.equal(await now(page), told(lane, time), called(plan));
      }
      await check(page, plan);
    }
  });
});

test("keys go to every cell, and the book turns no page", async () => {
  await open({}, async (page) => {
    for (const plan of STREAMS) {
      await choose(page, plan);
      await figure(page).locator(".stage").focus();
      const { lanes, told } = everything(plan);
      const end = moments(plan).at(-1);
      for (const lane of lanes) {
        for (const time of moments(plan)) {
          assert.equal(await now(page), told(lane, time), called(plan));
          await page.keyboard.press("ArrowRight");
        }
        await check(page, plan);
        // Nothing comes after the end.
        assert.equal(await now(page), told(lane, end));
        await page.keyboard.press("Home");
        await page.keyboard.press("ArrowLeft");
        assert.equal(await now(page), told(lane, 0));
        await page.keyboard.press("ArrowDown");
      }
      await page.keyboard.press("End");
      assert.equal(await now(page), told(lanes.at(-1), end));
      for (let lane = lanes.length - 2; lane >= -1; lane--) await page.keyboard.press("ArrowUp");
      assert.equal(await now(page), told(lanes[0], end));
    }
    assert.equal(page.url(), site.url);
  });
});

test("what is told about is framed, and so is its micro-batch elsewhere", async () => {
  await open({}, async (page) => {
    for (const plan of STREAMS) {
      await choose(page, plan);
      await button(page, "Step").click();
      await button(page, "Step").click();
      const { lanes, cells } = everything(plan);
      const cell = lanes[0].cells.find(({ end }) => 2 * tick(plan) < end);
      const frames = await figure(page).locator(".same, .pointed").evaluateAll((frames) =>
        frames.map((frame) => frame.classList[0]));
      const same = cells.filter(({ number }) => cell.number !== undefined && number === cell.number);
      assert.equal(frames.filter((kind) => kind === "same").length, same.length, called(plan));
      assert.equal(frames.filter((kind) => kind === "pointed").length, 1);
    }
  });
});

// A list of sharded state, as chapter 7 has them: one row, a unit's number in the bars, gathers and reduce-scatters.
const SHARDED = {
  menus: [{ field: "kind", name: "Strategy", compared: true }, { field: "prefetch", name: "Prefetch", compared: true }],
  facts: ["Time for the step", "Bytes sent"],
  row: "rank",
  held: [{ name: "parameters", series: 5 }, { name: "activations", series: 1 }],
  states: [[0.5, 0], [1.5, 0], [1.5, 1], [2.5, 1], [1.5, 2]],
  shapes: [{
    kind: "ZeRO 3", number: "unit", pale: "micro-batch", key: "A number is a unit.",
    labels: [
      { letter: "F", name: "forward", series: 1, numbers: ["unit", "micro-batch"], units: 1 },
      { letter: "B", name: "backward", series: 2, numbers: ["unit", "micro-batch"], units: 2 },
      { letter: "R", name: "recompute", series: 3, numbers: ["unit", "micro-batch"], units: 1 },
      { letter: "U", name: "update", series: 5, numbers: ["unit"], units: 0.5 },
      { letter: "G", name: "gather of parameters", series: 4, pale: true, numbers: ["unit"], units: 1 },
      { letter: "C", name: "reduce-scatter of gradients", series: 4, numbers: ["unit"], units: 1.5 },
    ],
  }],
  plans: [
    { kind: "ZeRO 3", prefetch: 0, facts: ["10 units", "3 MB"], units: 10, peaks: [3.5],
      rows: [["+1 F0 F0.1 +1 F1 R1 B1.1 U1", "G0 +1 G1 +3 C1", "0:0.5 1:0.5 2 2 3:0.5 2:0.5 4 4 2 0:2"]] },
    { kind: "ZeRO 3", prefetch: 1, facts: ["8 units", "3 MB"], units: 8, peaks: [3.5],
      rows: [["+1 F0 F0.1 F1 B1 +0.5 U1 U0", "G0 G1 +3 C1", "0 2 3 4 2 2 0 0 0:0.5"]] },
  ],
};

test("a list of sharded state has its own menus, words and numbers", async () => {
  await open({}, async (page) => {
    await figure(page).evaluate((element, data) => {
      const other = document.createElement("step-lists");
      const script = document.createElement("script");
      script.type = "application/json";
      script.textContent = JSON.stringify(data);
      other.append(script);
      element.replaceWith(other);
    }, SHARDED);
    for (const plan of SHARDED.plans) {
      await menu(page, "Prefetch").selectOption(String(plan.prefetch));
      const { lanes, cells, told } = everything(plan, SHARDED);
      const seen = await shown(page);
      assert.deepEqual(seen.names, ["rank 0"]);
      assert.deepEqual(seen.facts, plan.facts);
      assert.deepEqual(seen.cells.map(({ text }) => text), cells.map(({ words }) => words));
      assert.deepEqual(seen.numbers.map(({ text }) => text), cells.filter(isWork).map(({ number }) => number));
      await figure(page).locator(".stage").focus();
      for (const lane of lanes) {
        for (let time = 0; time < plan.units; time += 0.5) {
          assert.equal(await now(page), told(lane, time));
          await page.keyboard.press("ArrowRight");
        }
        await page.keyboard.press("Home");
        await page.keyboard.press("ArrowDown");
      }
      await page.keyboard.press("ArrowUp");
    }
    assert.equal(await figure(page).locator(".legend").innerText().then((text) => /gather of parameters: 1 unit/.test(text)), true);
    await screenshot("step-lists", page, "lists-sharded");
  });
});

test("every control is reached with the tab key, has a name, and shows that it has the focus", async () => {
  await open({}, async (page) => {
    // Where the drawing has to be scrolled, too.
    for (const each of [plan("1F1B", 4, 8), plan("naive", 8, 12, "slow")]) {
      await choose(page, each);
      assert.deepEqual(await tabStops(page, menu(page, "Schedule"), 9), [
        ["SELECT", "Schedule", true], ["SELECT", "Stages", true], ["SELECT", "Micro-batches", true],
        ["SELECT", "Links", true],
        ["BUTTON", "First", true], ["BUTTON", "Back", true], ["BUTTON", "Step", true],
        ["BUTTON", "Play", true], ["DIV", "The", true],
      ]);
    }
    assert.equal(await figure(page).locator(".now").getAttribute("aria-live"), "polite");
    assert.equal(await figure(page).locator("[id]").count(), 0, "print.html joins pages: no ids");
  });
});

test("it plays to the end, and pauses", async () => {
  await open({}, async (page) => {
    const small = plan("GPipe", 2, 1);
    const { lanes: [lane], told } = everything(small);
    const veil = () => figure(page).locator(".veil").isVisible();
    await choose(page, small);
    await figure(page).locator(".stage").focus();
    await page.keyboard.press("Space");
    assert.equal(await figure(page).locator(".now").getAttribute("aria-live"), "off");
    assert.ok(await veil(), "what is to come is dimmed");
    await button(page, "Pause").click();
    assert.ok(!(await veil()));
    const paused = await now(page);
    await page.waitForTimeout(900);
    assert.equal(await now(page), paused);
    await button(page, "Play").click();
    // The pointer only looks, while it plays.
    await figure(page).locator(".plot .cell").last().hover();
    assert.ok(!(await now(page)).startsWith("Stage 1"));
    await button(page, "Play").waitFor();
    assert.equal(await now(page), told(lane, moments(small).at(-1)));
    await page.mouse.move(0, 0);
    await button(page, "Play").focus();
    await page.keyboard.press("Space");
    assert.equal(await now(page), told(lane, 0));
    await figure(page).locator(".plot .cell").last().click();
    await button(page, "Play").waitFor();
    assert.ok((await now(page)).startsWith("Stage 1"));
  });
});

test("on a telephone the page is not scrolled sideways, and all of a drawing can be reached", async () => {
  await open({ viewport: { width: 320, height: 640 } }, async (page) => {
    for (const plan of plans) {
      await choose(page, plan);
      await check(page, plan);
      if (!plan.refused) {
        await figure(page).locator(".stage").focus();
        await page.keyboard.press("End");
      }
      const outside = await page.evaluate(() => {
        const beyond = (left, right) => (element) => {
          const box = element.getBoundingClientRect();
          return box.left < left - 0.5 || box.right > right + 0.5;
        };
        const interactive = document.querySelector("step-lists .interactive");
        const plot = interactive.querySelector(".plot");
        const parts = [...interactive.querySelectorAll("*:not(option)")]
          .filter((part) => part.checkVisibility() && (!plot.contains(part) || part === plot));
        const { left } = plot.firstElementChild.getBoundingClientRect();
        const drawn = [...plot.querySelectorAll("rect, text")].filter((part) => part.checkVisibility());
        const frame = interactive.getBoundingClientRect();
        return [
          ...(document.documentElement.scrollWidth > 320 ? ["the page"] : []),
          ...parts.filter(beyond(frame.left, frame.right)).map((part) => part.outerHTML.slice(0, 200)),
          ...drawn.filter(beyond(left, left + plot.scrollWidth)).map((part) => part.outerHTML.slice(0, 200)),
          // Its end has been scrolled to.
          ...[...plot.querySelectorAll(".pointed")].filter((part) => part.checkVisibility())
            .filter(beyond(plot.getBoundingClientRect().left, plot.getBoundingClientRect().right))
            .map((part) => `not scrolled to: ${part.outerHTML.slice(0, 200)}`),
        ];
      });
      assert.deepEqual(outside, [], called(plan));
    }
  });
});

test("without scripts there is the picture", async () => {
  for (const width of [320, 1100]) {
    await open({ javaScriptEnabled: false, viewport: { width, height: 900 } }, pictureOnly);
  }
});

test("on paper there is the picture", async () => {
  await open({}, async (page) => {
    assert.ok(!(await figure(page).locator("figure").isVisible()));
    await page.emulateMedia({ media: "print" });
    await pictureOnly(page);
    await screenshot("step-lists", page, "lists-paper");
  });
});

test("a page opened from a disk works as well", async () => {
  await open({}, async (page) => {
    await choose(page, plan("ZB-H1", 3, 4, "slow"));
    await check(page, plan("ZB-H1", 3, 4, "slow"));
  }, pathToFileURL(site.file).href);
});

test("where data is damaged the picture stays, and the console says so", async () => {
  await damaged('"plans":[', '"plans":', pictureOnly);
});

test("nothing moves unless it is asked to", () => still("Step"));

test("light and dark, telephone and desk: everything stands out from the ground", async () => {
  for (const [name, width] of [["telephone", 320], ["desk", 1100]]) {
    await open({ viewport: { width, height: 1000 } }, async (page) => {
      for (const theme of ["light", "navy"]) {
        await paint(page, theme);
        for (const plan of STREAMS) {
          await choose(page, plan);
          for (let step = 0; step < 5; step++) await button(page, "Step").click();
          const { labels } = shapes.find(({ kind }) => kind === plan.kind);
          const chunks = labels[0].numbers.length;
          const first = (part) => figure(page).locator(part).first();
          const least = async (part, property, least, ground) => {
            // Numbers are left out where they have no room.
            if (part.endsWith(".number") && await first(part).count() === 0) return;
            const found = await contrast(first(part), property, ground);
            assert.ok(found >= least, `${theme}, ${plan.kind}: ${part} ${found.toFixed(2)}`);
          };
          const numbers = await figure(page).locator(".plot .number").count();
          const all = everything(plan).cells.filter(({ number }) => number !== undefined).length;
          if (name === "desk" && plan.kind !== "naive" && plan.links === "fast") assert.equal(numbers, all, called(plan));
          for (const series of plan.kind === "ZB-H1" ? [1, 2, 3] : [1, 2]) {
            const cell = `.plot .cell.series-${series}`;
            await least(`${cell}:not(.pale)`, "fill", 3);
            await least(`${cell}:not(.pale) + .number`, "fill", 4.5, `${cell}:not(.pale)`);
            if (chunks > 1 && series === 2) await least(`${cell}.pale + .number`, "fill", 4.5, `${cell}.pale`);
          }
          for (const part of [".names text", ".peaks text", ".plot .small", ".curve"]) await least(part, "fill", 4.5);
          for (const part of [".now", ".key", ".legend", "dt", "dd", "button"]) await least(part, "color", 4.5);
          assert.deepEqual(await smallTexts(figure(page)), [], `${theme}, ${name}`);
          await least(".pointed", "stroke", 4.5);
          const short = plan.kind.toLowerCase().split(/[ ,]/)[0];
          await screenshot("step-lists", page, `lists-${short}-${plan.links}-${name}-${theme}`);
        }
      }
    });
  }
});
