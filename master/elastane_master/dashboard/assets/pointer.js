"use strict";
// Values under the pointer, or under a cursor that arrow keys move; a part of the timeline by dragging.
// Pictures are replaced while they are looked at: what is pointed at is kept as a number, not as an element.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  let pointed = null; // {box, x, y}: in the units of the picture; y null: by keyboard
  let drag = null; // {box, from}: where a button was pressed

  const pictureOf = (box) => box.querySelector("svg[data-left]");
  const number = (svg, name) => Number(svg.dataset[name]);
  const readoutOf = (box) => box.closest("figure, section").querySelector(".readout");
  const within = (svg, x) => Math.min(Math.max(x, number(svg, "left")), number(svg, "right"));
  const placeOf = (svg, event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return { x: within(svg, place.x), y: place.y };
  };
  const timeAt = (svg, x) => {
    const share = (x - number(svg, "left")) / (number(svg, "right") - number(svg, "left"));
    return number(svg, "began") + share * (number(svg, "ended") - number(svg, "began"));
  };
  const add = (svg, name, values) => {
    const shape = svg.appendChild(document.createElementNS(SVG, name));
    for (const [key, value] of Object.entries(values)) shape.setAttribute(key, value);
    return shape;
  };

  // What a timeline shows at a time: signs that are near, and bars: the one pointed at, or those of all workers.
  const timelineWords = (svg, { x, y }) => {
    const near = [...svg.querySelectorAll(".sign")].filter(
      (sign) => Math.abs(sign.getAttribute("x") - x) < 6 && (y === null || Math.abs(sign.getAttribute("y") - 5 - y) < 14),
    );
    const saves = [...svg.querySelectorAll(".saves")].filter((one) => {
      const { x: left, width, y: top } = one.getBBox();
      return x > left - 5 && x < left + width + 5 && (y === null || y > top - 6);
    });
    const bars = [...svg.querySelectorAll("rect[class]")].filter((bar) => {
      const { x: left, y: top, width, height } = bar.getBBox();
      return x >= left && x <= left + width && (y === null || (y >= top - 2 && y <= top + height + 2));
    });
    const titles = [...near, ...saves, ...bars].map((one) => one.querySelector("title")?.textContent).filter(Boolean);
    const at = timeAt(svg, x);
    return [`${clock(at)}`, ...titles.slice(0, 6)].join(" · ");
  };

  // The values of all lines of a curve at the step nearest to a place, and where they are.
  const valuesAt = (svg, x) => {
    const words = [];
    const places = [];
    for (const line of svg.querySelectorAll("polyline.curve")) {
      const points = line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number));
      let nearest = 0;
      points.forEach(([left], place) => {
        if (Math.abs(left - x) < Math.abs(points[nearest][0] - x)) nearest = place;
      });
      const [step, value, raw] = line.dataset.values.split(";")[nearest].split(" ");
      places.push(points[nearest]);
      const label = line.dataset.label ? `${line.dataset.label}, ` : "";
      words.push(`${label}step ${step}: ${value}${raw ? ` (raw ${raw})` : ""}`);
    }
    return { words: words.join(" · "), places };
  };

  const show = () => {
    document.querySelectorAll(".cursor").forEach((one) => one.remove());
    if (pointed && !pointed.box.isConnected) {
      // The whole figure was replaced.
      pointed.box = pointed.box.id && document.getElementById(pointed.box.id);
    }
    if (!pointed?.box) return;
    const svg = pictureOf(pointed.box);
    const readout = readoutOf(pointed.box);
    if (!svg || !readout) return;
    const bottom = number(svg, "bottom");
    if (drag?.box === pointed.box) {
      const [left, right] = [drag.from, pointed.x].sort((one, other) => one - other);
      add(svg, "rect", { class: "cursor", x: left, y: 0, width: right - left, height: bottom });
    }
    add(svg, "line", { class: "cursor", x1: pointed.x, x2: pointed.x, y1: 0, y2: bottom });
    const values = svg.dataset.began ? null : valuesAt(svg, pointed.x);
    for (const [x, y] of values?.places ?? []) add(svg, "circle", { class: "cursor", cx: x, cy: y, r: 4 });
    const text = values ? values.words : timelineWords(svg, pointed);
    if (readout.textContent !== text) readout.textContent = text;
  };

  const clock = (at) => globalThis.elastaneClock?.(at) ?? new Date(at * 1000).toISOString().slice(11, 19);

  document.addEventListener("pointermove", (event) => {
    const box = event.target.closest?.(".pointed");
    const svg = box && pictureOf(box);
    if (!svg) return;
    pointed = { box, ...placeOf(svg, event) };
    show();
  });
  document.addEventListener("pointerdown", (event) => {
    const box = event.target.closest?.(".pointed");
    const svg = box && pictureOf(box);
    if (!svg?.dataset.began || event.button || event.pointerType !== "mouse") return;
    drag = { box, from: placeOf(svg, event).x };
  });
  document.addEventListener("pointerup", () => {
    const dragged = drag;
    drag = null;
    const svg = dragged && pictureOf(dragged.box);
    if (!svg || pointed?.box !== dragged.box || Math.abs(pointed.x - dragged.from) < 8) return;
    const ends = [timeAt(svg, dragged.from), timeAt(svg, pointed.x)].sort((one, other) => one - other);
    const query = new URLSearchParams(location.search);
    for (const name of ["span", "notice"]) query.delete(name);
    query.set("began", ends[0].toFixed(1));
    query.set("until", ends[1].toFixed(1));
    document.dispatchEvent(new CustomEvent("ask", { detail: `?${query}` }));
  });
  addEventListener("keydown", (event) => {
    const box = document.activeElement?.closest?.(".pointed");
    const svg = box && pictureOf(box);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!svg || !by || event.ctrlKey || event.metaKey || event.altKey) return;
    const width = number(svg, "right") - number(svg, "left");
    const from = pointed?.box === box ? pointed.x : by > 0 ? number(svg, "left") : number(svg, "right");
    pointed = { box, x: within(svg, from + (by * width) / (event.shiftKey ? 20 : 100)), y: null };
    show();
    event.preventDefault();
  });
  document.addEventListener("replaced", show);
  // Where a picture is wider than the window, its newest part is seen first.
  for (const box of document.querySelectorAll(".pointed")) box.scrollLeft = box.scrollWidth;
})();
