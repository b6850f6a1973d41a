// <scaling-chart> in Chromium: what it shows is what stage 8 says, and what was measured.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { test } from "node:test";
import { contrast, paint, pictureOnly as picture, screenshot, smallTexts, tabStops, visit } from "./browser.js";
import { data } from "./site.js";

const { assumed, measured_on, links, panels } = data("scaling-chart");
const { site, open, damaged, still } = visit("scaling-chart");
const pictureOnly = picture("scaling-chart", /not measured/);

// What the menus offer: each panel with and without overlap.
const charts = panels.flatMap((panel) => [
  { ...panel, overlap: "yes", ways: panel.with_overlap },
  { ...panel, overlap: "no", ways: panel.without_overlap },
]);
const chart = (link, model, batch, overlap = "yes") => charts.find((chart) =>
  chart.link === link && chart.model === model && chart.batch === batch && chart.overlap === overlap);
const called = ({ link, model, batch, overlap }) => [link, model, batch, overlap].join("; ");
const PAPER = links.filter(({ measured }) => !measured).map(({ name }) => name);
const SMALL = chart(PAPER[0], "LeNet", "256 for all");
const LARGE = chart(PAPER[3], "ResNet-18", "256 each");
const HERE = charts.find(({ on }) => on);
const SOME = [SMALL, LARGE, chart(PAPER[4], "LeNet", "64 each", "no"), HERE];

const figure = (page) => page.locator("scaling-chart");
const menu = (page, label) => figure(page).locator(".controls").getByLabel(label);
const button = (page, name) => figure(page).getByRole("button", { name, exact: true });
const now = async (page) => (await figure(page).locator(".now").textContent()).replaceAll("\u00a0", " ");

async function choose(page, { link, model, batch, overlap }) {
  for (const [label, value] of [["Link", link], ["Model", model], ["Batch", batch], ["Overlap", overlap]]) {
    await menu(page, label).selectOption(value);
  }
}

// ---- What a reader sees.

const shown = (page) =>
  figure(page).evaluate((element) => {
    const plain = (text) => text.replaceAll("\u00a0", " ");
    const all = (selector) => [...element.querySelectorAll(selector)];
    const box = (part) => {
      const { x, y, width, height } = part.getBBox();
      return { text: part.textContent, left: x, right: x + width, top: y, bottom: y + height };
    };
    const path = (part) => ({ series: part.classList[1], d: part.getAttribute("d") });
    return {
      chosen: ["link", "model", "batch", "overlap"].map((name) => element.querySelector(`select.${name}`).value),
      about: element.querySelector(".chart").getAttribute("aria-label"),
      now: plain(element.querySelector(".now").textContent),
      told: plain(element.querySelector(".told").textContent),
      up: all(".up").map((part) => [part.textContent, part.getAttribute("y") - 4]),
      along: all(".along").map((part) => [part.textContent, Number(part.getAttribute("x"))]),
      bold: all(".along.chosen").map((part) => part.textContent),
      texts: all(".chart text").map(box),
      ideal: element.querySelector(".ideal").getAttribute("d"),
      curves: all(".chart .curve").map(path),
      names: all(".chart .name").map(box),
      marks: all(".chart .mark").map((part) => ({ ...path(part), at: part.getAttribute("transform") })),
      cursor: element.querySelector(".cursor").getAttribute("d"),
      heads: all("thead th").map((part) => [part.className, part.textContent]),
      rows: all("tbody tr:not(.bars)").map((row) => [...row.children].map((cell) => plain(cell.textContent))),
      bars: all("tbody .bars td").map((cell) => [...cell.querySelectorAll(".bar")].map((bar) => [
        bar.getAttribute("class"), bar.getAttribute("d"),
      ])),
      size: { width: Number(element.querySelector(".chart").getAttribute("width")),
        height: Number(element.querySelector(".chart").getAttribute("height")) },
    };
  });

// ---- What the data says should be seen.

const number = (text) => Number(text.replaceAll(",", ""));

// A number is shown as it is, or rounded to at least two digits.
function rounds(text, value, what) {
  assert.match(text, /^[\d,]+(\.\d+)?$/, what);
  const decimals = text.split(".")[1]?.length ?? 0;
  assert.ok(Math.abs(number(text) - value) <= 0.5001 * 10 ** -decimals, `${what}: ${text} for ${value}`);
  const telling = text.replace(/^[0.,]+/, "").replace(/\D/g, "").length;
  assert.ok(value === 0 || telling >= 2 || value >= 1, `${what}: ${text} for ${value}`);
}

function percent(text, part, what) {
  if (text === "< 0.1 %") return assert.ok(part > 0 && part < 0.001, `${what}: ${part}`);
  const [shown, unit] = text.split(" ");
  assert.equal(unit, "%", what);
  const decimals = shown.split(".")[1]?.length ?? 0;
  assert.ok(Math.abs(Number(shown) - 100 * part) <= 0.5001 * 10 ** -decimals, `${what}: ${text} for ${part}`);
}

const fastest = ({ ways }, step) => Math.max(...ways.map(({ speed_up }) => speed_up[step]));

function checkReading(text, chart, step) {
  const { devices, samples, compute, ways } = chart;
  const what = `${called(chart)}: ${text}`;
  if (devices[step] === 1) {
    const [, images, time] = /^1 device, (\S+) images?: (\S+) ms\. It waits for nobody\.$/.exec(text) ?? assert.fail(what);
    assert.equal(number(images), samples[step], what);
    return rounds(time, compute[step], what);
  }
  const found = new RegExp(/^(\S+) devices(?: in (\S+) hosts)?, (\S+) images? on each, which take (\S+) ms\. /.source
    + /(Fastest with|Slower than one device, whatever the way: with) (\w+):? (\S+) times /.source
    + /(?:one device's|its) images a second(?: \(measured: (\S+)\))?\.$/.source).exec(text) ?? assert.fail(what);
  const [, count, hosts, images, time, verdict, way, times, measured] = found;
  const { each } = links.find(({ name }) => name === chart.link);
  assert.equal(number(count), devices[step], what);
  assert.equal(hosts && number(hosts), each && devices[step] > each ? devices[step] / each : undefined, what);
  assert.equal(number(images), samples[step], what);
  rounds(time, compute[step], what);
  const best = ways.find((other) => other.way === way);
  assert.equal(best.speed_up[step], fastest(chart, step), what);
  rounds(times, best.speed_up[step], what);
  assert.equal(verdict.startsWith("Fastest"), best.speed_up[step] >= 1, what);
  assert.equal(measured === undefined, !best.measured, what);
  if (best.measured) rounds(measured, best.measured_speed_up[step], what);
}

function checkTold(text, chart, step) {
  const { measured, wires, each } = links.find(({ name }) => name === chart.link);
  const has = (part) => assert.ok(text.includes(part), `${called(chart)}: ${part} in ${text}`);
  if (measured) {
    assert.ok(!/not measured|[Aa]ssumed/.test(text), text);
    has(`on ${chart.on[step]} of ${measured_on}`);
    assert.equal(text.includes("a message takes"), chart.links[step] !== null, text);
    if (chart.links[step]) {
      const [, time, rate] = /a message takes (\S+) µs, and goes at (\S+) GB\/s/.exec(text);
      rounds(time, chart.links[step][0], text);
      rounds(rate, chart.links[step][1], text);
    }
    if (chart.notes[step]) has(chart.notes[step]);
    return;
  }
  has("Assumed, not measured");
  has(`${assumed.operations} TFLOP/s`);
  has(`${assumed.memory} TB/s`);
  has(`${assumed.fixed} ms a step`);
  for (const { name, bandwidth, latency } of wires) has(`${name}, ${bandwidth} GB/s and ${latency} µs a message`);
  assert.equal(text.includes(`${each} devices in a host`), each !== undefined, text);
}

const LABELS = ["A step, ms", "Waiting, ms", "Speed-up", "Efficiency", "Measured, ms", "Speed-up, measured"];

function checkTable(seen, { devices, compute, ways }, step, what) {
  assert.deepEqual(seen.heads, ways.map(({ way }, i) => [`series-${i + 1}`, way]), what);
  const measured = ways[0].measured !== undefined;
  assert.deepEqual(seen.rows.map(([label]) => label), measured ? LABELS : LABELS.slice(0, 4), what);
  ways.forEach((way, i) => {
    const [time, waiting, times, efficiency, ...other] = seen.rows.map((row) => row[i + 1]);
    rounds(time, way.step[step], what);
    rounds(waiting, way.exposed[step], what);
    rounds(times, way.speed_up[step], what);
    percent(efficiency, way.speed_up[step] / devices[step], what);
    if (measured) {
      rounds(other[0], way.measured[step], what);
      rounds(other[1], way.measured_speed_up[step], what);
    }
  });
  // Bars are as high as times are long, on one scale; the torn ones are longer than six of the shortest.
  const shortest = Math.min(...ways.map((way) => way.step[step]));
  const scales = [];
  assert.equal(seen.bars.length, ways.length, what);
  seen.bars.forEach(([[waits, above], [computes, below]], i) => {
    const torn = ways[i].step[step] > 6 * shortest;
    assert.equal(waits, `bar series-${i + 1}${torn ? " torn" : ""}`, what);
    assert.equal(computes, "bar compute", what);
    const middle = Number(/^M10 96V([\d.]+)h44V96z$/.exec(below)[1]);
    scales.push((96 - middle) / compute[step]);
    if (torn) return assert.match(above, /^M10 [\d.]+V8(l5\.5-6l5\.5 6){4}V[\d.]+z$/, what);
    const [, bottom, top] = /^M10 ([\d.]+)V([\d.]+)h44V[\d.]+z$/.exec(above);
    assert.equal(Number(bottom), middle, what);
    scales.push((96 - top) / ways[i].step[step]);
  });
  const [low, high] = [Math.min(...scales), Math.max(...scales)];
  assert.ok(high / low < 1.01, `${what}: bars on scales from ${low} to ${high}`);
  assert.ok(Math.max(...seen.bars.flat().map(([, d]) => 96 - /V([\d.]+)/.exec(d)[1])) > 80, `${what}: bars are seen`);
}

function checkDrawing(seen, chart, step, what) {
  const { devices, ways } = chart;
  const most = devices.at(-1);
  // The axes: numbers of devices go by factors, and so do times.
  assert.ok(seen.up.length >= 2, what);
  const [bottom, ceiling] = [seen.up[0], seen.up.at(-1)].map(([text, y]) => [Math.log(number(text)), y]);
  const y = (times) =>
    bottom[1] + (Math.log(times) - bottom[0]) / (ceiling[0] - bottom[0]) * (ceiling[1] - bottom[1]);
  for (const [text, at] of seen.up) assert.ok(Math.abs(at - y(number(text))) < 0.5, `${what}: ${text}`);
  const points = (d) => d.slice(1).split("L").map((point) => point.split(" ").map(Number));
  const [[left], [right]] = [points(seen.ideal)[0], points(seen.ideal)[1]];
  const x = (count) => left + Math.log(count) / Math.log(most) * (right - left);
  for (const [text, at] of seen.along) assert.ok(Math.abs(at - x(number(text))) < 0.5, `${what}: ${text}`);
  const near = (a, b, why) => assert.ok(Math.abs(a - b) < 0.6, `${what}: ${why}: ${a}, not ${b}`);
  const check = (found, wanted, why) => {
    assert.equal(found.length, wanted.length, `${what}: ${why}`);
    found.forEach(([a, b], i) => {
      near(a, wanted[i][0], `${why}, along`);
      near(b, wanted[i][1], `${why}, up`);
    });
  };
  check(points(seen.ideal), [[x(1), y(1)], [x(most), y(most)]], "ideal");
  assert.equal(seen.curves.length, ways.length, what);
  ways.forEach(({ way, speed_up }, i) => {
    const curve = seen.curves.find(({ series }) => series === `series-${i + 1}`);
    check(points(curve.d), devices.map((count, i) => [x(count), y(speed_up[i])]), way);
  });
  // Every mark is as high as what was measured, and beside its number of devices.
  const marks = ways.flatMap(({ measured_speed_up: all = [] }, i) => all.map((times, at) => [i, devices[at], times]));
  assert.equal(seen.marks.length, marks.length, what);
  seen.marks.forEach(({ series, at }, mark) => {
    const [i, count, times] = marks[mark];
    const [, along, up] = /^translate\((\S+) (\S+)\)$/.exec(at);
    assert.equal(series, `series-${i + 1}`, what);
    near(Number(up), y(times), "a mark");
    assert.ok(Math.abs(along - x(count)) < 24, `${what}: a mark beside ${count}`);
  });
  assert.deepEqual(seen.names.map(({ text }) => text).sort(), ["ideal", ...ways.map(({ way }) => way)].sort(), what);
  // The number that is read off.
  near(Number(/^M(\S+) /.exec(seen.cursor)[1]), x(devices[step]), "the number that is read");
  const label = devices[step].toLocaleString("en-US");
  assert.deepEqual(seen.bold, seen.along.some(([text]) => text === label) ? [label] : [], what);
  // No text on another, and none cut off.
  seen.texts.forEach((a, i) => {
    const { width, height } = seen.size;
    assert.ok(a.left > -0.5 && a.right < width + 0.5 && a.top > -0.5 && a.bottom < height + 0.5,
      `${what}: ${a.text} is cut off`);
    for (const b of seen.texts.slice(0, i)) {
      // Letters are lower than their boxes.
      const apart = a.left >= b.right || b.left >= a.right || a.top + 3 >= b.bottom || b.top + 3 >= a.bottom;
      assert.ok(apart, `${what}: ${a.text} on ${b.text}`);
    }
  });
}

async function check(page, chart, step) {
  const seen = await shown(page);
  const what = `${called(chart)}, ${chart.devices[step]}`;
  assert.deepEqual(seen.chosen, [chart.link, chart.model, chart.batch, chart.overlap], what);
  for (const part of [chart.name, chart.batch, chart.link, chart.overlap === "yes" ? "with overlap" : "without overlap"]) {
    assert.ok(seen.about.includes(part), `${what}: ${seen.about}`);
  }
  checkReading(seen.now, chart, step);
  checkTold(seen.told, chart, step);
  checkTable(seen, chart, step, what);
  checkDrawing(seen, chart, step, what);
}

// ---- The tests

test("the data has five links on paper with two models and four batches each, and something measured", () => {
  assert.equal(PAPER.length, 5);
  const all = PAPER.flatMap((link) => ["LeNet", "ResNet-18"].flatMap((model) =>
    ["256 for all", "2,048 for all", "64 each", "256 each"].flatMap((batch) =>
      ["yes", "no"].map((overlap) => called({ link, model, batch, overlap })))));
  assert.deepEqual(charts.filter(({ on }) => !on).map(called), all);
  assert.ok(HERE, "nothing was measured");
});

test("it opens where ways differ, and where each is fastest on some devices and slower on more", async () => {
  await open({}, async (page) => {
    const opened = chart(...(await shown(page)).chosen);
    const last = opened.devices.length - 1;
    const tops = opened.ways.map(({ speed_up }) => Math.max(...speed_up));
    opened.ways.forEach(({ way, speed_up }, i) => assert.ok(speed_up[last] < 0.8 * tops[i], way));
    assert.ok(Math.max(...tops) > 3 * Math.min(...tops), tops.join());
    const best = opened.ways[tops.indexOf(Math.max(...tops))];
    await check(page, opened, best.speed_up.indexOf(Math.max(...tops)));
  });
});

test("every chart can be chosen, and all that is shown of it is the data's", async () => {
  await open({}, async (page) => {
    for (const chart of charts) {
      await choose(page, chart);
      await figure(page).locator(".stage").focus();
      await page.keyboard.press("Home");
      for (let step = 0; step < chart.devices.length; step++) {
        await check(page, chart, step);
        await page.keyboard.press("ArrowRight");
      }
      // Nothing comes after the end.
      await check(page, chart, chart.devices.length - 1);
    }
  });
});

test("every chart can be chosen with keys", async () => {
  await open({}, async (page) => {
    const seen = new Set();
    // Every entry of a menu, and for each every one of those that follow.
    const through = async ([label, ...others]) => {
      if (!label) return seen.add((await shown(page)).chosen.join("; "));
      await menu(page, label).focus();
      await page.keyboard.press("Home");
      const entries = await menu(page, label).locator("option").count();
      for (let entry = 0; entry < entries; entry++) {
        if (entry > 0) {
          await menu(page, label).focus();
          await page.keyboard.press("ArrowDown");
        }
        await through(others);
      }
    };
    await through(["Link", "Model", "Batch", "Overlap"]);
    assert.deepEqual([...seen].sort(), charts.map(called).sort());
  });
});

test("a menu has what there is, and what was chosen comes back when it can be had", async () => {
  await open({}, async (page) => {
    await choose(page, { ...LARGE, overlap: "no" });
    await figure(page).locator(".stage").focus();
    await page.keyboard.press("End");
    await menu(page, "Link").selectOption(HERE.link);
    for (const [label, key] of [["Model", "model"], ["Batch", "batch"]]) {
      const values = await menu(page, label).locator("option").allTextContents();
      const chosen = (await shown(page)).chosen;
      const there = charts.filter(({ link, model }) =>
        link === HERE.link && (key === "model" || model === chosen[1])).map((chart) => chart[key]);
      assert.deepEqual(values, [...new Set(there)]);
    }
    const [link, model, batch, overlap] = (await shown(page)).chosen;
    const here = chart(link, model, batch, overlap);
    assert.equal(overlap, "no");
    // As many devices as there are.
    await check(page, here, here.devices.length - 1);
    await menu(page, "Link").selectOption(LARGE.link);
    await check(page, chart(LARGE.link, LARGE.model, LARGE.batch, "no"), LARGE.devices.length - 1);
  });
});

test("keys and buttons go to every number of devices, and the book turns no page", async () => {
  await open({}, async (page) => {
    for (const chart of SOME) {
      await choose(page, chart);
      const last = chart.devices.length - 1;
      await figure(page).locator(".stage").focus();
      await page.keyboard.press("End");
      await button(page, "One").click();
      // It is there to be read that it can do no more, and does nothing.
      await button(page, "Fewer").click({ force: true });
      checkReading(await now(page), chart, 0);
      for (let step = 1; step <= last; step++) {
        await button(page, "More").click();
        checkReading(await now(page), chart, step);
      }
      assert.equal(await button(page, "More").getAttribute("aria-disabled"), "true");
      await button(page, "More").click({ force: true });
      checkReading(await now(page), chart, last);
      await figure(page).locator(".stage").focus();
      await page.keyboard.press("ArrowLeft");
      checkReading(await now(page), chart, last - 1);
      await page.keyboard.press("End");
      await page.keyboard.press("ArrowRight");
      checkReading(await now(page), chart, last);
      await page.keyboard.press("Home");
      await page.keyboard.press("ArrowLeft");
      checkReading(await now(page), chart, 0);
    }
    assert.equal(page.url(), site.url);
  });
});

test("a click into the chart reads the nearest number of devices, and so does dragging", async () => {
  await open({}, async (page) => {
    await choose(page, LARGE);
    await figure(page).locator(".chart").scrollIntoViewIfNeeded();
    const { x, y } = await figure(page).locator(".chart").boundingBox();
    const { along } = await shown(page);
    for (const [text, at] of along) {
      await page.mouse.click(x + at + 8, y + 60);
      await check(page, LARGE, LARGE.devices.indexOf(number(text)));
    }
    // To look is not to choose.
    await page.mouse.move(x + along[0][1], y + 60);
    checkReading(await now(page), LARGE, LARGE.devices.length - 1);
    await page.mouse.down();
    await page.mouse.move(x + along[3][1], y + 90);
    checkReading(await now(page), LARGE, 3);
    await page.mouse.up();
    await page.mouse.move(x + along[5][1], y + 90);
    checkReading(await now(page), LARGE, 3);
  });
});

test("every control is reached with the tab key, has a name, and shows that it has the focus", async () => {
  await open({}, async (page) => {
    assert.deepEqual(await tabStops(page, menu(page, "Link"), 9), [
      ["SELECT", "Link", true], ["SELECT", "Model", true], ["SELECT", "Batch", true], ["SELECT", "Overlap", true],
      ["BUTTON", "One", true], ["BUTTON", "Fewer", true], ["BUTTON", "More", true], ["BUTTON", "Play", true],
      ["DIV", "The", true],
    ]);
    assert.equal(await figure(page).locator(".now").getAttribute("aria-live"), "polite");
    assert.equal(await figure(page).locator("[id]").count(), 0, "print.html joins pages: no ids");
  });
});

test("it plays to the most devices, and pauses", async () => {
  await open({}, async (page) => {
    await choose(page, SMALL);
    const last = SMALL.devices.length - 1;
    await button(page, "One").click();
    await figure(page).locator(".stage").focus();
    await page.keyboard.press("Space");
    checkReading(await now(page), SMALL, 1);
    assert.equal(await figure(page).locator(".now").getAttribute("aria-live"), "off");
    await button(page, "Pause").click();
    await page.waitForTimeout(1000);
    checkReading(await now(page), SMALL, 1);
    for (let step = 1; step < last - 1; step++) await button(page, "More").click();
    await button(page, "Play").click();
    await button(page, "Play").waitFor();
    checkReading(await now(page), SMALL, last);
    await button(page, "Play").focus();
    await page.keyboard.press("Space");
    checkReading(await now(page), SMALL, 0);
  });
});

test("on a telephone nothing is cut off, and the page is not scrolled sideways", async () => {
  await open({ viewport: { width: 320, height: 640 } }, async (page) => {
    // Without overlap numbers have as many digits.
    for (const chart of charts.filter(({ overlap }) => overlap === "yes")) {
      await choose(page, chart);
      await figure(page).locator(".stage").focus();
      await page.keyboard.press("Home");
      for (let step = 0; step < chart.devices.length; step++) {
        if (step === 0 || step === chart.devices.length - 1) await check(page, chart, step);
        const outside = await page.evaluate(() => {
          const interactive = document.querySelector("scaling-chart .interactive");
          const frame = interactive.getBoundingClientRect();
          const beyond = [...interactive.querySelectorAll("*:not(option)")].filter((part) => {
            const { left, right } = part.getBoundingClientRect();
            return part.checkVisibility() && (left < frame.left - 0.5 || right > frame.right + 0.5);
          });
          // A number wider than its column would stand on its neighbour.
          const wide = [...interactive.querySelectorAll("th, td")].filter((cell) => cell.scrollWidth > cell.clientWidth + 1);
          return [
            ...(document.documentElement.scrollWidth > 320 ? ["the page"] : []),
            ...[...beyond, ...wide].map((part) => part.outerHTML.slice(0, 200)),
          ];
        });
        assert.deepEqual(outside, [], `${called(chart)}, ${chart.devices[step]}`);
        await page.keyboard.press("ArrowRight");
      }
    }
  });
});

test("without scripts there is the picture", async () => {
  for (const width of [320, 1100]) {
    await open({ javaScriptEnabled: false, viewport: { width, height: 900 } }, pictureOnly);
  }
});

test("on paper there is the picture, and nothing of it is cut off", async () => {
  await open({}, async (page) => {
    assert.ok(!(await figure(page).locator("figure").isVisible()));
    await page.emulateMedia({ media: "print" });
    await pictureOnly(page);
    const cut = await figure(page).locator("figure svg").evaluate((svg) => {
      const { x, y, width, height } = svg.viewBox.baseVal;
      return [...svg.querySelectorAll("text")].filter((text) => {
        const box = text.getBBox();
        const [right, bottom] = [box.x + box.width, box.y + box.height];
        return box.x < x || box.y < y || right > x + width || bottom > y + height;
      }).map((text) => text.textContent);
    });
    assert.deepEqual(cut, []);
    await screenshot("scaling-chart", page, "scaling-paper");
  });
});

test("a page opened from a disk works as well", async () => {
  await open({}, async (page) => {
    await choose(page, LARGE);
    await button(page, "One").click();
    await check(page, LARGE, 0);
  }, pathToFileURL(site.file).href);
});

test("where data is damaged the picture stays, and the console says so", async () => {
  await damaged('"panels":[', '"panels":', pictureOnly);
});

test("nothing moves unless it is asked to", () => still("More"));

test("light and dark, telephone and desk: everything stands out from the ground", async () => {
  for (const [name, width] of [["telephone", 320], ["desk", 1100]]) {
    await open({ viewport: { width, height: 1000 } }, async (page) => {
      for (const theme of ["light", "navy"]) {
        await paint(page, theme);
        for (const [which, chart] of SOME.entries()) {
          await choose(page, chart);
          await figure(page).locator(".stage").focus();
          await page.keyboard.press("End");
          const least = async (part, property, least) => {
            const found = await contrast(figure(page).locator(part).first(), property);
            assert.ok(found >= least, `${theme}, ${called(chart)}: ${part} ${found.toFixed(2)}`);
          };
          for (let series = 1; series <= chart.ways.length; series++) {
            await least(`.curve.series-${series}`, "stroke", 3);
            await least(`.chart .name.series-${series}`, "fill", 4.5);
            await least(`.bars .bar.series-${series}`, "fill", 3);
            await least(`thead .series-${series}`, "color", 4.5);
            if (chart.on) await least(`.mark.series-${series}`, "fill", 3);
          }
          for (const part of [".up", ".along", ".name"]) await least(part, "fill", 4.5);
          for (const part of [".now", ".key", ".told", "td", "tbody th", "button", "label"]) await least(part, "color", 4.5);
          assert.deepEqual(await smallTexts(figure(page)), [], `${theme}, ${name}`);
          await screenshot("scaling-chart", page, `scaling-${which}-${name}-${theme}`);
        }
      }
    });
  }
});
