// What the book's interactive figures have in common.
//
//     <some-figure menu="what is chosen first">
//     <figure>a picture, for paper and for browsers without scripts</figure>
//     <script type="application/json">what a program of the course wrote</script>
//     </some-figure>
//
// Something is chosen from menus, and then stepped through with buttons, with keys, or by itself. The data
// stands in the page, and not in a file beside it, because a browser fetches no files for a page that was
// opened from a disk.
//
// A figure has PARTS, its HTML, and MENUS: for each, its class and attribute, and the key in the data. Where
// they follow from the data, it defines `html` and `menus` instead. It defines `choices`, the entries of the
// data; `start`, for a new choice; `last`, its last step; `tell`, to show a step; and `seconds`, how long one
// lasts when it plays.
"use strict";

class InteractiveFigure extends HTMLElement {
  // A part of a drawing.
  static shape(name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  }

  connectedCallback() {
    if (this.parts) return;
    this.data = JSON.parse(this.querySelector("script").textContent);
    this.parts = document.createElement("div");
    this.parts.className = "interactive";
    this.parts.innerHTML = this.html;
    for (const [name, key] of Object.entries(this.menus)) this.offer(name, key);
    const buttons = { first: 0, back: -1, next: 1 };
    for (const [name, by] of Object.entries(buttons)) {
      this.part(name).addEventListener("click", () => this.go(by === 0 ? 0 : this.step + by));
    }
    this.part("play").addEventListener("click", () => this.play());
    this.parts.addEventListener("keydown", (event) => this.press(event));
    this.prepend(this.parts);
    this.classList.add("ready");
    this.choose();
    new ResizeObserver(() => this.show()).observe(this.part("stage"));
  }

  get html() {
    return this.constructor.PARTS;
  }

  get menus() {
    return this.constructor.MENUS;
  }

  disconnectedCallback() {
    this.pause();
  }

  part(name) {
    return this.parts.querySelector(`.${name}`);
  }

  // Fills a menu with what the data has.
  offer(name, key) {
    const menu = this.part(name);
    const values = new Set(this.choices.map((choice) => String(choice[key])));
    menu.append(...[...values].map((value) => new Option(value, value)));
    if (values.has(this.getAttribute(name))) menu.value = this.getAttribute(name);
    menu.addEventListener("change", () => this.choose());
  }

  choose() {
    const wanted = Object.entries(this.menus).map(([name, key]) => [key, this.part(name).value]);
    this.start(this.choices.find((choice) => wanted.every(([key, value]) => String(choice[key]) === value)));
    this.go(0);
  }

  go(step) {
    this.pause();
    this.moveTo(step);
  }

  moveTo(step) {
    const before = this.step;
    this.step = Math.max(0, Math.min(this.last, step));
    this.part("stage").classList.toggle("moving", this.step > before);
    this.show();
  }

  play() {
    if (this.timer) return this.pause();
    this.part("play").textContent = "Pause";
    const move = () => {
      this.moveTo(this.step === this.last ? 0 : this.step + 1);
      if (this.step === this.last) this.pause();
    };
    this.timer = setInterval(move, 1000 * this.seconds);
    move();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = undefined;
    this.part("play").textContent = "Play";
  }

  // What keys do, besides those of every figure.
  get keys() {
    return {};
  }

  press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select")) return;
    const actions = {
      ArrowRight: () => this.go(this.step + 1),
      ArrowLeft: () => this.go(this.step - 1),
      Home: () => this.go(0),
      End: () => this.go(this.last),
      // On a button, space is the button's.
      ...(event.target.matches("button") ? {} : { " ": () => this.play() }),
      ...this.keys,
    };
    if (!Object.hasOwn(actions, event.key)) return;
    actions[event.key]();
    event.preventDefault();
    // The book turns its pages with the arrow keys.
    event.stopPropagation();
  }

  show() {
    this.tell();
    for (const name of ["first", "back"]) this.part(name).ariaDisabled = String(this.step === 0);
    this.part("next").ariaDisabled = String(this.step === this.last);
    this.part("play").ariaDisabled = String(this.last === 0);
  }
}
