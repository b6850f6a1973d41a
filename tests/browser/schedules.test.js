// <pipeline-schedules> in Chromium: what it shows is what stage 6 says.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { test } from "node:test";
import { contrast, paint, pictureOnly as picture, screenshot, smallTexts, tabStops, visit } from "./browser.js";
import { data } from "./site.js";

const { shapes, plans } = data("pipeline-schedules");
const { site, open, damaged, still } = visit("pipeline-schedules");
const pictureOnly = picture("pipeline-schedules", /GPipe.*1F1B.*ZB-H1/s);

const figure = (page) => page.locator("pipeline-schedules");
const menu = (page, label) => figure(page).locator(".controls").getByLabel(label);
const button = (page, name) => figure(page).getByRole("button", { name, exact: true });
const plan = (kind, stages, microBatches) =>
  plans.find((plan) => plan.kind === kind && plan.stages === stages && plan.micro_batches === microBatches);
const called = ({ kind, stages, micro_batches }) => `${kind}, ${stages} × ${micro_batches}`;
// One of each kind, of a size that all of them have.
const SOME = shapes.map(({ kind }) => plan(kind, 4, 8));

async function choose(page, { kind, stages, micro_batches }) {
  for (const [label, value] of [["Schedule", kind], ["Stages", stages], ["Micro-batches", micro_batches]]) {
    await menu(page, label).selectOption(String(value));
  }
}

// ---- What the data says should be seen.

const things = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;

// Every cell of every stage: its words, when it is, and what is kept meanwhile.
function cells({ kind, rows, units }) {
  const { chunks, passes } = shapes.find((shape) => shape.kind === kind);
  return rows.map(([letters, microBatches, starts, alive], stage) => {
    const all = [];
    let [time, kept] = [0, 0];
    const idle = (end) => {
      if (end === time) return;
      all.push({ words: `Stage ${stage}, idle, from ${time} to ${end}`, start: time, end, kept });
    };
    for (const [i, letter] of [...letters].entries()) {
      const { name, chunk, units } = passes.find((pass) => pass.letter === letter);
      idle(starts[i]);
      const after = alive[i];
      const [start, end] = [starts[i], starts[i] + units];
      const which = `micro-batch ${microBatches[i]}${chunks > 1 ? `, chunk ${chunk}` : ""}`;
      const words = `Stage ${stage}, ${which}, ${name}, from ${start} to ${end}`;
      all.push({ words, start, end, microBatch: microBatches[i], kept: name === "forward" ? after : kept });
      [time, kept] = [end, after];
    }
    idle(units);
    return all;
  });
}

const isPass = ({ microBatch }) => microBatch !== undefined;

const told = ({ words, kept }) => `${words}. Alive here: ${things(kept, "activation")}.`;

const tick = ({ kind }) => Math.min(...shapes.find((shape) => shape.kind === kind).passes.map(({ units }) => units));

const summary = (plan) => ({
  bubble: `${(100 * plan.bubble).toFixed(1)} %`,
  units: things(plan.units, "unit"),
  capacity: things(plan.capacity, "message"),
});

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
      summary: { bubble: text(".bubble"), units: text(".units"), capacity: text(".capacity") },
      chosen: ["kind", "stages", "micro-batches"].map((name) => element.querySelector(`.${name}`).value),
      visible: element.querySelector(".stage").checkVisibility(),
      now: text(".now"),
      names: texts(".stage-name"),
      peaks: texts(".stage .peak"),
      cells: boxes(".plot .cell"),
      numbers: boxes(".plot .number"),
      curve: text(".curve"),
      kept: [...element.querySelectorAll(".kept")].map((path) => path.getAttribute("d")),
    };
  });

const near = (a, b) => Math.abs(a - b) < 0.02;

// How high a curve is in each moment, counted in what `most` is.
function heights(path, unit, left, times, most) {
  const [, floor, rest] = /^M\S+ (\S+?)(V.*)V\S+Z$/.exec(path);
  const parts = [...rest.matchAll(/V([\d.]+)H([\d.]+)/g)].map(([, y, x]) => [Number(floor) - y, (x - left) / unit]);
  const level = Math.max(...parts.map(([height]) => height)) / most;
  return times.map((time) => Math.round(parts.find(([, end]) => time < end - 0.01)[0] / level));
}

async function check(page, plan) {
  const seen = await shown(page);
  const what = called(plan);
  assert.deepEqual(seen.chosen, [plan.kind, String(plan.stages), String(plan.micro_batches)]);
  if (plan.refused) {
    assert.equal(seen.now, plan.refused);
    assert.equal(seen.visible, false, what);
    assert.deepEqual(seen.summary, { bubble: "–", units: "–", capacity: "–" }, what);
    return;
  }
  assert.ok(seen.visible, what);
  assert.deepEqual(seen.summary, summary(plan), what);
  assert.equal(seen.names.length, plan.stages, what);
  assert.deepEqual(seen.names.map((name) => Number(name.replace("stage ", ""))), [...Array(plan.stages).keys()]);
  assert.deepEqual(seen.peaks, plan.peaks.map(String), what);

  // Every cell is there, at its time, in its row, and no two of a row overlap.
  const rows = cells(plan);
  const all = rows.flatMap((row, stage) => row.map((cell) => ({ ...cell, stage })));
  assert.deepEqual(seen.cells.map(({ text }) => text), all.map(({ words }) => words), what);
  const first = seen.cells[0];
  const last = seen.cells[rows[0].length - 1];
  const unit = (last.left - first.left) / rows[0].at(-1).start;
  const tops = rows.map((_, stage) => seen.cells[all.findIndex((cell) => cell.stage === stage)].top);
  seen.cells.forEach(({ left, right, top, bottom }, i) => {
    const { words, start, end, stage } = all[i];
    const gap = first.left + end * unit - right;
    assert.ok(near(left, first.left + start * unit) && gap > -0.02 && gap < 1.02, `${what}: ${words}`);
    assert.ok(near(top, tops[stage]) && (stage === 0 || top > tops[stage - 1] + bottom - top), `${what}: ${words}`);
  });
  // A number is its cell's, in all cells of one width or in none, and within it.
  const passes = seen.cells.map((cell, i) => ({ ...cell, ...all[i] })).filter(isPass);
  const widths = new Map();
  for (const cell of passes) {
    const middle = (cell.left + cell.right) / 2;
    const number = seen.numbers.find(({ left, right, top, bottom }) =>
      left < middle && middle < right && top < cell.bottom && bottom > cell.top);
    if (number) {
      assert.equal(number.text, String(cell.microBatch), `${what}: ${cell.words}`);
      assert.ok(number.left > cell.left - 0.6 && number.right < cell.right + 0.6, `${what}: ${cell.words}`);
    }
    const width = (cell.end - cell.start).toFixed(1);
    assert.equal(widths.get(width) ?? Boolean(number), Boolean(number), `${what}: ${cell.words}`);
    widths.set(width, Boolean(number));
  }

  // What is told, and the curve, are of the stage that is chosen.
  const stage = Number(/^Stage (\d+)/.exec(seen.now)[1]);
  assert.match(seen.curve, new RegExp(`alive on stage ${stage}$`));
  assert.ok(rows[stage].map(told).includes(seen.now), `${what}: ${seen.now}`);
  const times = Array.from({ length: plan.units / tick(plan) }, (_, i) => i * tick(plan));
  const kept = times.map((time) => rows[stage].find(({ end }) => time < end).kept);
  const most = Math.max(...kept);
  const found = seen.kept.map((path) => heights(path, unit, first.left, times, most));
  assert.deepEqual(found, [kept], `${what}: curve, at most ${most}`);
}

// ---- The tests

test("the data has five kinds in every size", () => {
  const sizes = [2, 3, 4, 6, 8].flatMap((p) => [1, 2, 4, 6, 8, 12, 16].map((m) => `${p} × ${m}`));
  const all = ["naive", "GPipe", "1F1B", "interleaved 1F1B, 2 chunks", "ZB-H1"]
    .flatMap((kind) => sizes.map((size) => `${kind}, ${size}`));
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
    // To the beginning of a menu, or one further.
    const press = async (label, key) => {
      await menu(page, label).focus();
      await page.keyboard.press(key);
    };
    const seen = new Set();
    const values = (name) => new Set(plans.map((plan) => plan[name])).size;
    await press("Schedule", "Home");
    for (let kind = 0; kind < values("kind"); kind++) {
      if (kind > 0) await press("Schedule", "ArrowDown");
      await press("Stages", "Home");
      for (let stages = 0; stages < values("stages"); stages++) {
        if (stages > 0) await press("Stages", "ArrowDown");
        await press("Micro-batches", "Home");
        for (let microBatches = 0; microBatches < values("micro_batches"); microBatches++) {
          if (microBatches > 0) await press("Micro-batches", "ArrowDown");
          const { chosen, summary: seenSummary, now } = await shown(page);
          const plan = plans.find((plan) => called(plan) === `${chosen[0]}, ${chosen[1]} × ${chosen[2]}`);
          if (plan.refused) assert.equal(now, plan.refused);
          else assert.deepEqual(seenSummary, summary(plan), called(plan));
          seen.add(called(plan));
        }
      }
    }
    assert.equal(seen.size, plans.length);
  });
});

test("the pointer tells what every cell is", async () => {
  await open({}, async (page) => {
    for (const plan of SOME) {
      await choose(page, plan);
      // In a chapter the figure is far down, and the pointer goes only where the window is.
      await figure(page).locator(".plot").scrollIntoViewIfNeeded();
      const boxes = await figure(page).locator(".plot .cell").evaluateAll((cells) =>
        cells.map((cell) => {
          const { x, y, width, height } = cell.getBoundingClientRect();
          return [x + width / 2, y + height / 2];
        }));
      for (const [i, cell] of cells(plan).flat().entries()) {
        await page.mouse.move(...boxes[i]);
        assert.equal(await now(page), told(cell), called(plan));
      }
      await check(page, plan);
    }
  });
});

test("keys go to every cell, and the book turns no page", async () => {
  await open({}, async (page) => {
    for (const plan of SOME) {
      await choose(page, plan);
      await figure(page).locator(".stage").focus();
      const rows = cells(plan);
      for (let stage = 0; stage < plan.stages; stage++) {
        for (let time = 0; time < plan.units; time += tick(plan)) {
          assert.equal(await now(page), told(rows[stage].find(({ end }) => time < end)), called(plan));
          await page.keyboard.press("ArrowRight");
        }
        await check(page, plan);
        // Nothing comes after the end.
        assert.equal(await now(page), told(rows[stage].at(-1)));
        await page.keyboard.press("Home");
        await page.keyboard.press("ArrowLeft");
        assert.equal(await now(page), told(rows[stage][0]));
        await page.keyboard.press("ArrowDown");
      }
      await page.keyboard.press("End");
      assert.equal(await now(page), told(rows.at(-1).at(-1)));
      for (let stage = plan.stages - 2; stage >= -1; stage--) await page.keyboard.press("ArrowUp");
      assert.equal(await now(page), told(rows[0].at(-1)));
    }
    assert.equal(page.url(), site.url);
  });
});

test("what is told about is framed, and so is its micro-batch elsewhere", async () => {
  await open({}, async (page) => {
    for (const plan of SOME) {
      await choose(page, plan);
      await button(page, "Step").click();
      await button(page, "Step").click();
      const rows = cells(plan);
      const cell = rows[0].find(({ end }) => 2 * tick(plan) < end);
      const frames = await figure(page).locator(".same, .pointed").evaluateAll((frames) =>
        frames.map((frame) => [frame.classList[0], Number(frame.getAttribute("x"))]));
      const same = rows.flat().filter((other) => isPass(cell) && other.microBatch === cell.microBatch);
      assert.equal(frames.filter(([kind]) => kind === "same").length, same.length, called(plan));
      assert.equal(frames.filter(([kind]) => kind === "pointed").length, 1);
    }
  });
});

test("every control is reached with the tab key, has a name, and shows that it has the focus", async () => {
  await open({}, async (page) => {
    // Where the drawing has to be scrolled, too.
    for (const each of [plan("1F1B", 4, 8), plan("naive", 8, 16)]) {
      await choose(page, each);
      assert.deepEqual(await tabStops(page, menu(page, "Schedule"), 8), [
        ["SELECT", "Schedule", true], ["SELECT", "Stages", true], ["SELECT", "Micro-batches", true],
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
    const [row] = cells(small);
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
    assert.equal(await now(page), told(row.at(-1)));
    await page.mouse.move(0, 0);
    await button(page, "Play").focus();
    await page.keyboard.press("Space");
    assert.equal(await now(page), told(row[0]));
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
        const interactive = document.querySelector("pipeline-schedules .interactive");
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
    await screenshot("pipeline-schedules", page, "schedules-paper");
  });
});

test("a page opened from a disk works as well", async () => {
  await open({}, async (page) => {
    await choose(page, plan("ZB-H1", 3, 4));
    await check(page, plan("ZB-H1", 3, 4));
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
        for (const plan of SOME) {
          await choose(page, plan);
          for (let step = 0; step < 5; step++) await button(page, "Step").click();
          const { chunks, passes } = shapes.find(({ kind }) => kind === plan.kind);
          const first = (part) => figure(page).locator(part).first();
          const least = async (part, property, least, ground) => {
            // Numbers are left out where they have no room.
            if (part.endsWith(".number") && await first(part).count() === 0) return;
            const found = await contrast(first(part), property, ground);
            assert.ok(found >= least, `${theme}, ${plan.kind}: ${part} ${found.toFixed(2)}`);
          };
          const numbers = await figure(page).locator(".plot .number").count();
          const all = cells(plan).flat().filter(isPass).length;
          if (name === "desk" && plan.kind !== "naive") assert.equal(numbers, all, called(plan));
          for (const series of passes.length / chunks === 3 ? [1, 2, 3] : [1, 2]) {
            const cell = `.plot .cell.series-${series}`;
            await least(`${cell}:not(.second)`, "fill", 3);
            await least(`${cell}:not(.second) + .number`, "fill", 4.5, `${cell}:not(.second)`);
            if (chunks > 1 && series === 2) await least(`${cell}.second + .number`, "fill", 4.5, `${cell}.second`);
          }
          for (const part of [".names text", ".peaks text", ".plot .small", ".curve"]) await least(part, "fill", 4.5);
          for (const part of [".now", ".key", ".legend", "dt", "dd", "button"]) await least(part, "color", 4.5);
          assert.deepEqual(await smallTexts(figure(page)), [], `${theme}, ${name}`);
          await least(".pointed", "stroke", 4.5);
          const short = plan.kind.toLowerCase().split(/[ ,]/)[0];
          await screenshot("pipeline-schedules", page, `schedules-${short}-${name}-${theme}`);
        }
      }
    });
  }
});
