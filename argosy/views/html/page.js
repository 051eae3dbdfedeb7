"use strict";
// One value comes in, `values`; one value says what a person has chosen, `chosen`; everything is drawn from both. Texts of users
// become text nodes and attributes alone, so no name can become markup.
let values = JSON.parse(document.getElementById("values").textContent);
const chosen = {
  metric: null,
  axis: null,
  log: null,
  mean: null,
  smooth: 0,
  zoom: {x: null, y: null},
  picked: [],
  sort: null,
  up: true,
  query: "",
  status: "",
  all: false,
  equal: false,
  brushes: {},
  members: false,
};
const FEW = 5,
  ROWS = 12,
  RATIO = 10,
  NAMED = 6;
const live = values.live;

// ---- elements ----
const SVG = "http://www.w3.org/2000/svg";
const put = (node, attributes, parts) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "colour") node.style.setProperty("--colour", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(
    ...parts.flat(Infinity).filter(part => part !== null && part !== undefined && part !== false && part !== ""),
  );
  return node;
};
const make = (tag, attributes, ...parts) => put(document.createElement(tag), attributes, parts);
const draw = (tag, attributes, ...parts) => put(document.createElementNS(SVG, tag), attributes, parts);
const find = id => document.getElementById(id);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const soft = text => text.split(/(?<=[._=/-])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));
const figure = value =>
  typeof value !== "number"
    ? String(value ?? "")
    : Number.isInteger(value) && Math.abs(value) < 1e6
      ? String(value)
      : value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)
        ? value
            .toExponential(2)
            .replace(/\.?0+e/, "e")
            .replace("e+", "e")
        : String(Number(value.toPrecision(4)));
const lasting = seconds =>
  seconds < 90
    ? `${figure(Number(seconds.toFixed(1)))} s`
    : seconds < 5400
      ? `${(seconds / 60).toFixed(1)} min`
      : `${(seconds / 3600).toFixed(1)} h`;
const finite = found => found.filter(value => typeof value === "number" && Number.isFinite(value));

// ---- scales ----
const scale = (low, high, from, to, log) => {
  const map = log ? Math.log10 : value => value;
  const [a, b] = [map(low), map(high)],
    span = b - a || 1;
  const at = value => from + (b === a ? 0.5 : (map(value) - a) / span) * (to - from);
  return Object.assign(at, {
    low,
    high,
    log,
    back: place => {
      const v = a + ((place - from) / (to - from)) * span;
      return log ? 10 ** v : v;
    },
  });
};
const ticks = (low, high, most, log) => {
  if (log && high / low >= 10) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const factor of high / low > 1e3 ? [1] : [1, 2, 5])
        if (factor * 10 ** power >= low * 0.999 && factor * 10 ** power <= high * 1.001)
          found.push(factor * 10 ** power);
    const every = Math.ceil(found.length / most);
    return found.filter((_, at) => at % every === 0).map(value => Number(value.toPrecision(6)));
  }
  const rough = (high - low) / most || 1,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999) * power,
    found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step)
    found.push(Number(value.toPrecision(10)));
  return found;
};
const extent = found =>
  found.length ? [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))] : [0, 1];
const wide = (low, high) =>
  low === high ? [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1] : [low, high];
// Values over more than a decade stand on a logarithmic axis where their median is nearer to its middle.
const isLog = given => {
  const found = [...given].sort((a, b) => a - b),
    [low, high] = [found[0], found.at(-1)],
    middle = found[Math.floor(found.length / 2)];
  return (
    low > 0 &&
    high / low >= RATIO &&
    Math.abs(Math.log(middle / low) / Math.log(high / low) - 0.5) < Math.abs((middle - low) / (high - low) - 0.5)
  );
};
// Words are places 0, 1, … of their own axis; numbers keep theirs.
const axisOf = found => {
  const given = found.filter(value => value !== null && value !== undefined);
  if (given.length && given.every(value => typeof value === "number")) {
    const [low, high] = wide(...extent(given));
    const distinct = [...new Set(given)].sort((a, b) => a - b);
    return {low, high, log: isLog(given), place: value => value, ticks: distinct.length <= NAMED ? distinct : null};
  }
  const words = [...new Set(given.map(String))].sort();
  return {
    low: -0.5,
    high: Math.max(words.length - 0.5, 0.5),
    log: false,
    words,
    place: value => words.indexOf(String(value)),
  };
};

// ---- colours, hover, selection ----
const best = () => {
  const picked = chosen.picked.filter(at => at < values.rows.length);
  if (picked.length) return picked;
  return values.rows.flatMap((row, at) => (row.counts ? [at] : [])).slice(0, FEW);
};
const colourOf = at => {
  const place = best().indexOf(at);
  return place < 0 ? null : `var(--c${place % 6})`;
};
const look = (at, kind) => ({class: `${kind}${colourOf(at) ? " best" : ""}`, colour: colourOf(at), "data-row": at});
let hot = "";
// Rows are numbers in a text, as in the attribute of what shows them: that of a mean has those of its members.
const warm = rows => {
  if (hot === rows) return;
  document.querySelectorAll(".hot").forEach(node => node.classList.remove("hot"));
  hot = rows;
  for (const row of rows.split(" ").filter(Boolean))
    document.querySelectorAll(`[data-row~="${row}"]`).forEach(node => {
      node.classList.add("hot");
      if (node.parentNode.classList.contains("marks")) node.parentNode.append(node);
    });
};
const tip = make("div", {class: "tip", hidden: true, role: "presentation"});
const tell = (event, text) => {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const {clientWidth} = document.documentElement,
    left = Math.min(event.pageX + 14, clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${event.pageY + 16}px`;
};
const pick = at => {
  if (!chosen.picked.length) chosen.mean = false;
  chosen.picked = chosen.picked.includes(at) ? chosen.picked.filter(other => other !== at) : [...chosen.picked, at];
  redraw();
};
// Points that a pointer finds: [x, y, row, text]; the nearest within reach is hot.
const nearest = (svg, points) => {
  const found = event => {
    const box = svg.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    let least = 900,
      near = null;
    for (const point of points) {
      const far = (point[0] - x) ** 2 + (point[1] - y) ** 2;
      if (far < least) {
        least = far;
        near = point;
      }
    }
    return near;
  };
  svg.addEventListener("pointermove", event => {
    const near = found(event);
    warm(String(near?.[2] ?? ""));
    tell(event, near?.[3]);
  });
  svg.addEventListener("pointerleave", event => {
    warm("");
    tell(event, "");
  });
  svg.addEventListener("click", event => {
    const near = found(event);
    if (Number.isInteger(near?.[2])) pick(near[2]);
  });
};
const frame = (place, height, name) => {
  const width = Math.max(place.clientWidth, 120);
  return [draw("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": name}), width];
};
const axes = (x, y, box, names, whole) => {
  const parts = [],
    most = Math.max(Math.floor((box.right - box.left) / 80), 2);
  for (const value of y.words
    ? y.words.map((_, at) => at)
    : ticks(y.low, y.high, Math.max(Math.floor((box.bottom - box.top) / 40), 2), y.log))
    parts.push(
      draw("line", {class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value)}),
      draw("text", {x: box.left - 6, y: y(value) + 4, "text-anchor": "end"}, figure(value)),
    );
  for (const value of x.words
    ? x.words.map((_, at) => at)
    : (x.ticks ?? ticks(x.low, x.high, most, x.log)).filter(value => !whole || Number.isInteger(value)))
    parts.push(
      draw(
        "text",
        {x: x(value), y: box.bottom + 15, "text-anchor": "middle"},
        x.words ? short(x.words[value], (box.right - box.left) / x.words.length / 6.2) : figure(value),
      ),
    );
  parts.push(draw("line", {class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}));
  if (names[0]) parts.push(draw("text", {x: box.right, y: box.bottom + 30, "text-anchor": "end"}, names[0]));
  if (names[1]) parts.push(draw("text", {x: 0, y: box.top - 8, class: "title"}, names[1]));
  return parts;
};
const short = (text, letters) =>
  text.length <= letters ? text : `${text.slice(0, Math.max(Math.floor(letters) - 1, 1))}…`;
const path = points => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// ---- cards ----
const isCode = label => label === "Load it" || label === "Weights";
const card = ({title, value, name, pairs, counts}) =>
  make(
    "section",
    {class: "panel card"},
    make("h2", null, title),
    make("div", {class: "value"}, value),
    name && make("div", {class: "note"}, name),
    counts && [
      make(
        "div",
        {class: "strip", "aria-hidden": "true"},
        counts.map(([status, count]) => make("i", {class: status, style: `flex:${count}`})),
      ),
      make(
        "div",
        {class: "counts"},
        counts.map(([status, count]) => make("span", {class: `status ${status}`}, `${count} ${status}`)),
      ),
    ],
    pairs.length > 0 &&
      make(
        "dl",
        null,
        pairs.map(([label, text]) => [
          make("dt", null, label || "Failure"),
          make("dd", null, isCode(label) ? make("code", {tabindex: 0}, text) : text),
        ]),
      ),
  );

// ---- curves ----
const AXES = ["epoch", "steps", "time"];
const SMOOTHEST = 0.99,
  SLIGHT = 12;
const metric = () => (values.metrics.includes(chosen.metric) ? chosen.metric : values.metrics[0]);
const isMean = () => values.bands.length > 0 && (chosen.mean ?? true);
const axis = () => (AXES.includes(chosen.axis) ? chosen.axis : AXES[0]);
const unitOf = seconds => (seconds < 120 ? ["seconds", 1] : seconds < 7200 ? ["minutes", 60] : ["hours", 3600]);
// Exponential means whose weights sum to one at the first values too, as TensorBoard draws them.
const smoothed = found => {
  let mean = 0,
    weight = 0;
  return found.map(value => {
    if (typeof value !== "number") return value;
    mean = chosen.smooth * mean + (1 - chosen.smooth) * value;
    weight = chosen.smooth * weight + 1 - chosen.smooth;
    return mean / weight;
  });
};
const lineOf = ({label, across, curves}, name, rest) => {
  const [raw, low = [], high = []] = curves[name];
  const spots = smoothed(raw)
    .map((value, at) => ({
      x: across[AXES.indexOf(axis())][at],
      value,
      raw: raw[at],
      low: low[at],
      high: high[at],
      epoch: across[0][at],
    }))
    .filter(spot => typeof spot.value === "number");
  return {label, spots, ...rest};
};
const linesOf = name =>
  isMean()
    ? values.bands
        .filter(band => band.curves[name])
        .map((band, at) =>
          lineOf(band, name, {
            colour: at < FEW ? `var(--c${at})` : null,
            row: band.members.join(" "),
            counts: true,
          }),
        )
    : values.rows.flatMap((row, at) =>
        row.curves?.[name] ? [lineOf(row, name, {colour: colourOf(at), row: at, counts: row.counts})] : [],
      );
// What is seen of the values, least and greatest.
const rangeOf = (lines, log) => {
  const counted = lines.filter(line => line.counts),
    within = spot => !chosen.zoom.x || (spot.x >= chosen.zoom.x[0] && spot.x <= chosen.zoom.x[1]);
  const all = finite(
    (counted.length ? counted : lines).flatMap(line =>
      line.spots
        .filter(within)
        .flatMap(spot => [spot.value, isMean() && spot.low, isMean() && spot.high, line.colour && spot.raw]),
    ),
  ).sort((a, b) => a - b);
  let [low, high] = wide(...extent(all));
  // Few values far away would make a line of all the others.
  const middle = all[Math.floor(all.length * 0.5)],
    most = all[Math.floor(all.length * 0.97)];
  if (!log && most > middle && high > most + 4 * (most - all[0])) high = most + (most - all[0]) * 0.2;
  return chosen.zoom.y ? [...chosen.zoom.y, 0] : [low, high, all.filter(value => value > high).length];
};
let plot = null;
const drawCurves = () => {
  const place = find("curves");
  if (!place) return;
  const name = metric(),
    mean = isMean(),
    lines = linesOf(name).filter(line => line.spots.length);
  find("log").setAttribute("aria-pressed", "false");
  find("mean")?.setAttribute("aria-pressed", String(mean));
  find("smoothing").textContent = chosen.smooth.toFixed(2);
  find("unzoom").hidden = !chosen.zoom.x && !chosen.zoom.y;
  plot = null;
  if (!lines.length) {
    place.replaceChildren(make("p", {class: "note"}, "No section has ended."));
    return;
  }
  const log =
      chosen.log ?? isLog(finite(lines.filter(line => line.counts).flatMap(line => line.spots.map(spot => spot.raw)))),
    [low, high, hidden] = rangeOf(lines, log),
    logs = log && low > 0;
  find("log").setAttribute("aria-pressed", String(logs));
  const [svg, width] = frame(place, place.clientWidth < 500 ? 300 : 400, `${name} by ${axis()}`),
    height = svg.viewBox.baseVal.height;
  const letters = Math.min(Math.max(...lines.map(line => (line.colour ? line.label.length : 0))), 28);
  const box = {left: 52, right: width - (width > 620 ? letters * 6.8 + 18 : 12), top: 26, bottom: height - 36};
  const found = extent(lines.flatMap(line => line.spots.map(spot => spot.x))),
    whole = found[0] === found[1] ? [found[0] - 1, found[0] + 1] : found,
    [first, last] = chosen.zoom.x ?? whole,
    [unit, seconds] = axis() === "time" ? unitOf(last) : [axis(), 1];
  const x = scale(first, last, box.left, box.right, false),
    y = scale(low, high, box.bottom, box.top, logs),
    // Ticks of minutes stand at whole ones.
    shown = Object.assign(value => x(value * seconds), {low: first / seconds, high: last / seconds});
  const points = [],
    marks = draw("g", {class: "marks", "clip-path": "url(#inside)"}),
    ends = [];
  svg.append(
    draw(
      "clipPath",
      {id: "inside"},
      draw("rect", {
        x: box.left - 4,
        y: box.top - 4,
        width: box.right - box.left + 8,
        height: box.bottom - box.top + 8,
      }),
    ),
    ...axes(
      shown,
      y,
      box,
      [axis() === "time" ? `${unit} since the start` : unit, `${name}${logs ? ", logarithmic" : ""}`],
      axis() === "epoch" && last - first > 1,
    ),
  );
  for (const line of [...lines].reverse().sort((a, b) => Boolean(a.colour) - Boolean(b.colour))) {
    const places = what =>
      line.spots
        .filter(spot => typeof spot[what] === "number" && (!logs || spot[what] > 0))
        .map(spot => [x(spot.x), y(spot[what]), spot]);
    const spots = places("value");
    if (!spots.length) continue;
    const looks = mean
      ? {class: line.colour ? "curve best" : "curve", colour: line.colour, "data-row": line.row}
      : look(line.row, "curve");
    if (line.colour && places("low").length > 1)
      marks.append(
        draw("path", {
          class: "area",
          colour: line.colour,
          d: `${path([...places("low"), ...places("high").reverse()])}Z`,
        }),
      );
    if (line.colour && chosen.smooth)
      marks.append(draw("path", {class: "raw", colour: line.colour, "data-row": line.row, d: path(places("raw"))}));
    marks.append(
      spots.length === 1
        ? draw("circle", {...looks, class: looks.class.replace("curve", "dot"), cx: spots[0][0], cy: spots[0][1], r: 4})
        : draw("path", {...looks, d: path(spots)}),
    );
    const seen = spots.filter(([at]) => at > box.left - 5 && at < box.right + 5);
    for (const [at, high, spot] of seen)
      if (high > box.top - 5 && high < box.bottom + 5)
        points.push([
          at,
          high,
          line.row,
          `${line.label}\nepoch ${figure(spot.epoch)}${axis() === "epoch" ? "" : `, ${figure(spot.x / seconds)} ${unit}`}: ${figure(spot.raw)}${chosen.smooth ? `, smoothed ${figure(spot.value)}` : ""}`,
        ]);
    if (line.colour && seen.length)
      ends.push({
        y: Math.min(Math.max(seen.at(-1)[1], box.top + 6), box.bottom),
        label: line.label,
        colour: line.colour,
      });
  }
  svg.append(marks);
  if (width > 620) {
    ends
      .sort((a, b) => a.y - b.y)
      .forEach((end, at) => {
        if (at) end.y = Math.max(end.y, ends[at - 1].y + 15);
      });
    const over = Math.max((ends.at(-1)?.y ?? 0) - box.bottom, 0);
    ends.forEach(end =>
      svg.append(
        draw(
          "text",
          {x: box.right + 8, y: end.y + 4 - over, class: "name", style: `fill:${end.colour}`},
          short(end.label, 28),
        ),
      ),
    );
  }
  nearest(svg, points);
  plot = {svg, x, y, box, whole};
  const keys =
    width > 620
      ? null
      : make(
          "div",
          {class: "chips"},
          ends.map(end => make("span", {class: "key", colour: end.colour}, make("i"), end.label)),
        );
  const notes = [
    hidden && `${plural(hidden, "value")} above ${figure(high)} ${hidden === 1 ? "is" : "are"} cut off.`,
    marks.querySelector(".area") && "Means and their 95 % intervals, at the epochs that all members have reached.",
    chosen.smooth && "Smoothed by exponential means; the original values are pale.",
  ].filter(Boolean);
  place.replaceChildren(
    ...[svg, keys, notes.length ? make("p", {class: "note"}, notes.join(" ")) : null].filter(Boolean),
  );
};
const zoom = (x, y) => {
  chosen.zoom = {x, y};
  turn();
};
const unzoom = () => zoom(null, null);
// A rectangle that is lower or narrower than a slip of the hand cuts the other axis alone.
const dragCurves = event => {
  if (!plot || event.button || !plot.svg.contains(event.target)) return;
  const {svg, x, y, box} = plot,
    rectangle = draw("rect", {class: "brush"});
  const at = ({clientX, clientY}) => {
    const {left, top} = svg.getBoundingClientRect();
    return [
      clamp(clientX - left, {low: box.left, high: box.right}),
      clamp(clientY - top, {low: box.top, high: box.bottom}),
    ];
  };
  const from = at(event);
  const cut = event =>
    at(event).map((to, side) =>
      Math.abs(to - from[side]) < SLIGHT ? null : [Math.min(to, from[side]), Math.max(to, from[side])],
    );
  svg.setPointerCapture(event.pointerId);
  svg.append(rectangle);
  svg.addEventListener("pointermove", event => {
    const [across, along] = cut(event),
      [left, right] = across ?? [box.left, box.right],
      [top, bottom] = along ?? [box.top, box.bottom];
    const is = across || along;
    put(rectangle, {x: left, width: is ? right - left : 0, y: top, height: is ? bottom - top : 0}, []);
  });
  svg.addEventListener("pointercancel", drawCurves);
  svg.addEventListener("pointerup", event => {
    const [across, along] = cut(event);
    if (across || along)
      zoom(across ? across.map(x.back) : chosen.zoom.x, along ? along.reverse().map(y.back) : chosen.zoom.y);
    else rectangle.remove();
  });
};
const keyCurves = event => {
  if (event.key === "Escape") unzoom();
  if (!plot) return;
  const {low, high} = plot.x,
    quarter = (high - low) / 4;
  const moved = {
    "+": [quarter, -quarter],
    "=": [quarter, -quarter],
    "-": [-2 * quarter, 2 * quarter],
    ArrowLeft: [-quarter, -quarter],
    ArrowRight: [quarter, quarter],
  }[event.key];
  if (!moved || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const [first, last] = plot.whole,
    seen = [Math.max(low + moved[0], first), Math.min(high + moved[1], last)];
  if (moved[0] === moved[1] && seen[1] - seen[0] < high - low) return;
  zoom(seen[0] === first && seen[1] === last ? null : seen, chosen.zoom.y);
};
// What is chosen of the curves is in the page's address, so that it can be sent and comes back with the page.
const turn = () => {
  drawCurves();
  const told = {
    metric: chosen.metric,
    x: chosen.axis,
    y: chosen.log === null ? null : chosen.log ? "log" : "linear",
    smooth: chosen.smooth || null,
    across: chosen.zoom.x?.map(value => value.toPrecision(6)),
    along: chosen.zoom.y?.map(value => value.toPrecision(6)),
  };
  history.replaceState(null, "", `#${new URLSearchParams(Object.entries(told).filter(([, value]) => value))}`);
};
const recall = () => {
  const told = new URLSearchParams(location.hash.slice(1));
  const pair = name => {
    const found = (told.get(name) ?? "").split(",").map(Number);
    return found.length === 2 && found[0] < found[1] ? found : null;
  };
  chosen.metric = told.get("metric");
  chosen.axis = told.get("x");
  chosen.log = {log: true, linear: false}[told.get("y")] ?? null;
  chosen.smooth = clamp(Number(told.get("smooth")) || 0, {low: 0, high: SMOOTHEST});
  chosen.zoom = {x: pair("across"), y: pair("along")};
};
const choice = (id, label, options, is, change) =>
  make(
    "select",
    {id, "aria-label": label, onchange: ({target}) => change(target.value)},
    options.map(([value, text]) => make("option", {value, selected: value === is}, text)),
  );
const curvesPanel = () =>
  panel(
    "Learning curves",
    [
      choice(
        "metric",
        "Metric",
        values.metrics.map(one => [one, one]),
        metric(),
        one => {
          chosen.metric = one;
          zoom(chosen.zoom.x, null);
        },
      ),
      choice(
        "axis",
        "Horizontal axis",
        AXES.map(one => [one, `by ${one}`]),
        axis(),
        one => {
          chosen.axis = one;
          zoom(null, chosen.zoom.y);
        },
      ),
      make(
        "button",
        {
          type: "button",
          id: "log",
          onclick: ({currentTarget}) => {
            chosen.log = currentTarget.getAttribute("aria-pressed") !== "true";
            turn();
          },
        },
        "log",
      ),
      values.bands.length > 0 &&
        make(
          "button",
          {
            type: "button",
            id: "mean",
            onclick: () => {
              chosen.mean = !isMean();
              drawCurves();
            },
          },
          "mean ± 95 %",
        ),
      make(
        "label",
        {class: "slider"},
        "smoothing",
        make("input", {
          id: "smooth",
          type: "range",
          min: 0,
          max: SMOOTHEST,
          step: 0.01,
          value: chosen.smooth,
          oninput: ({target}) => {
            chosen.smooth = Number(target.value);
            drawCurves();
          },
          onchange: turn,
        }),
        make("output", {id: "smoothing"}),
      ),
      make("button", {type: "button", id: "unzoom", onclick: unzoom}, "Show all"),
      clear(),
    ],
    make("div", {
      id: "curves",
      tabindex: 0,
      role: "group",
      "aria-label": "Learning curves: drag to zoom, or press plus, minus and arrows; Escape shows all",
      onpointerdown: dragCurves,
      ondblclick: unzoom,
      onkeydown: keyCurves,
    }),
    values.rows.length > FEW &&
      make(
        "p",
        {class: "note"},
        `The best ${FEW} are in colour, or the rows that you click here, in the table or in any other figure.${values.rows.length > 200 ? " The best 200 are drawn." : ""}`,
      ),
    make("p", {class: "note"}, "Drag over the curves to zoom; a double click or Escape shows all."),
  );

// ---- hyper-parameters ----
const columnsOf = kind => values.columns.flatMap((column, at) => (column.kind === kind ? [{...column, at}] : []));
// Those first that explain most, then those that most rows have.
const varied = () => {
  const given = column => values.rows.filter(row => row.cells[column.at] !== null).length;
  return columnsOf("parameter")
    .filter(column => !column.equal)
    .map(column => ({...column, given: given(column)}))
    .sort((a, b) => (b.weight ?? 0) - (a.weight ?? 0) || b.given - a.given);
};
const reached = row =>
  row.cells[values.columns.findIndex(column => column.kind === "metric" && column.name === values.objective)];
// A value far worse than most says no more by its distance.
const worth = () => {
  const found = finite(values.rows.filter(row => row.counts).map(reached)).sort((a, b) => a - b);
  if (!found.length) return null;
  let [low, high] = wide(...extent(found));
  if (isLog(found)) return {low, high, log: true};
  const at = share => found[Math.min(Math.floor(found.length * share), found.length - 1)],
    spread = at(0.9) - at(0.1);
  if (spread > 0 && high > at(0.9) + 5 * spread) high = at(0.9) + spread;
  if (spread > 0 && low < at(0.1) - 5 * spread) low = at(0.1) - spread;
  return {low, high, log: false};
};
const kindOf = (row, at) => {
  const found = look(at, "dot");
  return {...found, class: `${found.class}${row.status === "pruned" ? " out" : ""}`};
};
const clamp = (value, {low, high}) => Math.min(Math.max(value, low), high);
// Each of these columns against the objective; a line over given rows where there is one.
const drawAgainst = (place, columns, height, line = null) => {
  const range = worth();
  if (!place || !range) return;
  place.replaceChildren(
    ...columns
      .map(({name, at}) => {
        const holder = make("div");
        place.append(holder);
        const [svg, width] = frame(holder, height, `${values.objective} over ${name}`),
          box = {left: 44, right: width - 8, top: 24, bottom: height - 38};
        const rows = values.rows
          .map((row, number) => ({row, number, value: row.cells[at], reach: reached(row)}))
          .filter(one => one.row.counts && typeof one.reach === "number" && one.value !== null);
        const axis = axisOf(rows.map(one => one.value)),
          pad = axis.words || axis.log ? 0 : (axis.high - axis.low) * 0.03;
        const x = Object.assign(
          axis.log
            ? scale(axis.low / 1.15, axis.high * 1.15, box.left, box.right, true)
            : scale(axis.low - pad, axis.high + pad, box.left, box.right, false),
          {words: axis.words, ticks: axis.ticks},
        );
        const y = scale(range.low, range.high, box.bottom, box.top, range.log),
          points = [],
          marks = draw("g", {class: "marks"});
        svg.append(
          ...axes(x, y, box, [null, null]),
          draw("text", {x: 0, y: 12, class: "title"}, short(name, width / 7)),
        );
        for (const one of rows.sort(
          (a, b) => Boolean(colourOf(a.number)) - Boolean(colourOf(b.number)) || b.number - a.number,
        )) {
          const shift = axis.words ? (((one.number * 7919) % 100) / 100 - 0.5) * 0.5 : 0,
            spot = [x(axis.place(one.value) + shift), y(clamp(one.reach, range))];
          marks.append(
            draw("circle", {
              ...kindOf(one.row, one.number),
              cx: spot[0].toFixed(1),
              cy: spot[1].toFixed(1),
              r: colourOf(one.number) ? 5 : 3.5,
            }),
          );
          points.push([
            ...spot,
            one.number,
            `${one.row.label}\n${name} = ${figure(one.value)}\n${values.objective} ${figure(one.reach)}`,
          ]);
        }
        if (line) svg.append(draw("path", {class: "best-so-far", d: path(line(rows, one => [x(one.value), y(clamp(one.reach, range))]))}));
        svg.append(marks);
        nearest(svg, points);
        holder.append(svg);
        return holder;
      }),
  );
};
const drawScatter = () => {
  const place = find("scatter");
  // Two figures in a row are as high as the parallel coordinates beside them.
  if (place) drawAgainst(place, varied().slice(0, 12), varied().length * 246 <= place.clientWidth + 16 ? 300 : 190);
};
const drawFront = () => {
  const {objectives, pareto} = values.search ?? {objectives: []},
    others = objectives.slice(1).map(([name]) => ({name, at: values.columns.findIndex(column => column.kind !== "parameter" && column.name === name)}));
  // Of two objectives the set is a line: what is reached for at most, or at least, so much of the other one.
  const line = (rows, spot) => {
    const spots = rows.filter(one => pareto.includes(one.number)).sort((a, b) => a.value - b.value).map(spot);
    return spots.flatMap(([x, y], at) => (at ? [objectives[1][1] === "min" ? [x, spots[at - 1][1]] : [spots[at - 1][0], y], [x, y]] : [[x, y]]));
  };
  drawAgainst(find("front"), others, 300, others.length === 1 ? line : null);
};
const drawParallel = () => {
  const place = find("parallel"),
    range = worth();
  if (!place || !range) return;
  const most = Math.max(Math.floor(place.clientWidth / 95) - 1, 2),
    found = varied(),
    shown = found.slice(0, most);
  const [svg, width] = frame(place, 300, "Hyper-parameters and the objective of each row, on parallel axes"),
    gaps = shown.some(column => column.given < values.rows.length),
    box = {left: 34, right: width - 40, top: 44, bottom: gaps ? 262 : 276};
  const objective = {
    name: values.objective,
    at: values.columns.findIndex(column => column.kind === "metric" && column.name === values.objective),
  };
  const lanes = [...shown, objective].map((column, number) => {
    const axis =
      column === objective
        ? {...range, place: value => clamp(value, range)}
        : axisOf(values.rows.filter(row => row.counts).map(row => row.cells[column.at]));
    const up = scale(axis.low, axis.high, box.bottom, box.top, axis.log);
    // What a row does not have is below the axis.
    return {
      ...column,
      axis,
      y: value => (value === null ? box.bottom + 18 : up(axis.place(value))),
      x: box.left + (number / shown.length) * (box.right - box.left),
    };
  });
  const inside = row =>
    lanes.every(lane => {
      const brush = chosen.brushes[lane.name];
      if (!brush) return true;
      const at = lane.y(row.cells[lane.at]);
      return at > Math.min(...brush) - 4 && at < Math.max(...brush) + 4;
    });
  const points = [],
    marks = draw("g", {class: "marks"});
  let kept = 0;
  values.rows
    .map((row, at) => [row, at])
    .filter(([row]) => row.counts && reached(row) !== null)
    .sort((a, b) => Boolean(colourOf(a[1])) - Boolean(colourOf(b[1])) || b[1] - a[1])
    .forEach(([row, at]) => {
      if (!inside(row)) return;
      kept += 1;
      const spots = lanes.map(lane => [lane.x, lane.y(row.cells[lane.at])]);
      marks.append(draw("path", {...look(at, "curve"), d: path(spots)}));
      spots.forEach(([x, y], number) =>
        points.push([x, y, at, `${row.label}\n${lanes[number].name} ${figure(row.cells[lanes[number].at]) || "none"}`]),
      );
    });
  svg.append(marks);
  for (const [number, lane] of lanes.entries()) {
    const end = number === lanes.length - 1 ? "end" : number ? "middle" : "start",
      room = (box.right - box.left) / shown.length / 6.6;
    svg.append(
      draw("line", {class: "axis", x1: lane.x, x2: lane.x, y1: box.top, y2: box.bottom, style: "stroke:var(--soft)"}),
      draw(
        "text",
        {
          x: end === "end" ? width : end === "start" ? 0 : lane.x,
          y: 14 + (number % 2) * 15,
          class: "title",
          "text-anchor": end,
        },
        short(lane.name, room * 1.6),
      ),
    );
    for (const value of lane.axis.words ?? lane.axis.ticks ?? ticks(lane.axis.low, lane.axis.high, 5, lane.axis.log)) {
      const last = number === lanes.length - 1;
      svg.append(
        draw(
          "text",
          {x: lane.x + (last ? 5 : -5), y: lane.y(value) + 4, "text-anchor": last ? "start" : "end"},
          short(figure(value), 10),
        ),
      );
    }
    if (lane.given < values.rows.length)
      svg.append(draw("text", {x: lane.x - 5, y: box.bottom + 22, "text-anchor": "end"}, "none"));
    const brush = chosen.brushes[lane.name];
    if (brush)
      svg.append(
        draw("rect", {
          class: "brush",
          x: lane.x - 8,
          width: 16,
          y: Math.min(...brush),
          height: Math.abs(brush[1] - brush[0]),
        }),
      );
    const grip = draw("rect", {
      x: lane.x - 10,
      width: 20,
      y: box.top,
      height: box.bottom - box.top,
      fill: "transparent",
      style: "cursor:ns-resize;touch-action:none",
    });
    grip.addEventListener("pointerdown", event => {
      const top = svg.getBoundingClientRect().top,
        from = event.clientY - top;
      grip.setPointerCapture(event.pointerId);
      grip.addEventListener(
        "pointerup",
        up => {
          const to = up.clientY - top;
          if (Math.abs(to - from) < 4) delete chosen.brushes[lane.name];
          else chosen.brushes[lane.name] = [from, to];
          drawParallel();
        },
        {once: true},
      );
      event.stopPropagation();
    });
    grip.addEventListener("click", event => event.stopPropagation());
    svg.append(grip);
  }
  nearest(svg, points);
  const brushed = lanes.some(lane => chosen.brushes[lane.name]),
    rest = found.length - shown.length;
  place.replaceChildren(
    svg,
    make(
      "p",
      {class: "note"},
      `${brushed ? `${plural(kept, values.noun)} pass through the marked ranges; click on an axis to clear it.` : "Drag along an axis to keep a range."}${rest > 0 ? ` There is no room here for ${plural(rest, "other parameter")}.` : ""}`,
    ),
  );
};

// ---- table ----
const shownRows = () => {
  const words = chosen.query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = values.rows
    .map((row, at) => ({row, at}))
    .filter(
      ({row}) =>
        (!chosen.status || row.status === chosen.status) &&
        words.every(word =>
          [row.name, row.status, row.reason, ...row.cells.map((cell, at) => `${values.columns[at].name}=${cell}`)]
            .join(" ")
            .toLowerCase()
            .includes(word),
        ),
    );
  if (chosen.sort === null) return found;
  const keys = values.columns.map(keyOf),
    key = ({row}) =>
      chosen.sort === "name" ? row.name : chosen.sort === "status" ? row.status : row.cells[keys.indexOf(chosen.sort)];
  const compare = (a, b) =>
    a === b
      ? 0
      : a === null || a === undefined
        ? 2
        : b === null || b === undefined
          ? -2
          : typeof a === "number" && typeof b === "number"
            ? a - b
            : String(a).localeCompare(String(b), "en", {numeric: true});
  return found.sort((a, b) => {
    const found = compare(key(a), key(b));
    return Math.abs(found) === 2 && ((key(a) ?? null) === null) !== ((key(b) ?? null) === null)
      ? found
      : chosen.up
        ? found
        : -found;
  });
};
const keyOf = column => `${column.kind} ${column.name}`;
const sortBy = at => {
  chosen.up = chosen.sort === at ? !chosen.up : true;
  chosen.sort = at;
  drawTable();
};
const drawTable = () => {
  const place = find("table");
  if (!place) return;
  const rows = shownRows(),
    shown = chosen.all ? rows : rows.slice(0, ROWS);
  const columns = values.columns.flatMap((column, at) =>
    column.equal && !chosen.equal && column.name !== values.objective ? [] : [{...column, at}],
  );
  const numeric = column =>
    values.rows.every(row => row.cells[column.at] === null || typeof row.cells[column.at] === "number");
  const head = (at, name, number) =>
    make(
      "th",
      {
        scope: "col",
        class: number ? "number" : null,
        "aria-sort": chosen.sort === at ? (chosen.up ? "ascending" : "descending") : null,
      },
      make(
        "button",
        {type: "button", onclick: () => sortBy(at)},
        soft(name),
        chosen.sort === at ? (chosen.up ? " ↑" : " ↓") : "",
      ),
    );
  const build = columns =>
    make(
      "table",
      {class: "members"},
      make(
        "thead",
        null,
        make(
          "tr",
          null,
          head("name", values.noun, false),
          columns.slice(0, 1).map(column => head(keyOf(column), column.name, true)),
          head("status", "status", false),
          columns.slice(1).map(column => head(keyOf(column), column.name, numeric(column))),
        ),
      ),
      make(
        "tbody",
        null,
        shown.flatMap(({row, at}) => {
          const cell = column => make("td", {class: numeric(column) ? "number" : null}, figure(row.cells[column.at]));
          const picked = chosen.picked.includes(at);
          const line = make(
            "tr",
            {"data-row": at, onpointerenter: () => warm(String(at)), onpointerleave: () => warm("")},
            make(
              "td",
              {class: "who", colour: colourOf(at)},
              make(
                "button",
                {type: "button", "aria-pressed": String(picked), onclick: () => pick(at), title: row.name},
                row.label,
              ),
              row.reason && make("span", {class: row.counts ? "note" : "reason"}, row.reason),
            ),
            columns.slice(0, 1).map(cell),
            make("td", null, make("span", {class: `status ${row.status}`}, row.status)),
            columns.slice(1).map(cell),
          );
          const facts =
            picked &&
            make(
              "tr",
              {class: "more"},
              make(
                "td",
                {colspan: columns.length + 2},
                make(
                  "dl",
                  null,
                  values.columns.map(
                    (column, number) =>
                      row.cells[number] !== null &&
                      make("div", null, make("dt", null, column.name), make("dd", null, figure(row.cells[number]))),
                  ),
                ),
                make("code", {tabindex: 0}, row.load),
              ),
            );
          return facts ? [line, facts] : [line];
        }),
      ),
    );
  // The least important columns, which are last, make room; a row that is chosen has all of them below it.
  let fitting = columns,
    table = build(fitting);
  place.replaceChildren(table);
  while (fitting.length > 1 && table.scrollWidth > place.clientWidth + 1) {
    const over = table.scrollWidth - place.clientWidth;
    const cells = [...table.tHead.rows[0].cells].slice(3).reverse();
    let width = 0,
      count = 0;
    for (const cell of cells) {
      if (width >= over) break;
      width += cell.offsetWidth;
      count += 1;
    }
    fitting = fitting.slice(0, Math.max(fitting.length - Math.max(count, 1), 1));
    table = build(fitting);
    place.replaceChildren(table);
  }
  const left = columns.length - fitting.length,
    more = rows.length - ROWS;
  place.append(
    make(
      "div",
      {class: "bar", style: "margin-top:8px"},
      more > 0 &&
        make(
          "button",
          {
            type: "button",
            onclick: () => {
              chosen.all = !chosen.all;
              drawTable();
            },
          },
          chosen.all ? `Show the first ${ROWS}` : `Show all ${rows.length}`,
        ),
      make(
        "span",
        {class: "note", role: "status"},
        [
          rows.length < values.rows.length && `${rows.length} of ${plural(values.rows.length, values.noun)} match.`,
          left > 0 && `${plural(left, "column")} more in the details of a ${values.noun}: click its name.`,
        ]
          .filter(Boolean)
          .join(" "),
      ),
    ),
  );
};

// ---- search ----
const drawHistory = () => {
  const place = find("history");
  if (!place) return;
  const range = worth();
  const rows = values.rows
    .map((row, at) => ({row, at, reach: reached(row)}))
    .filter(one => one.row.number !== null && typeof one.reach === "number");
  if (!rows.length || !range) {
    place.replaceChildren(make("p", {class: "note"}, "No trial has ended a section."));
    return;
  }
  const [svg, width] = frame(place, place.clientWidth < 500 ? 260 : 400, `${values.objective} of each trial`),
    box = {left: 48, right: width - 10, top: 26, bottom: svg.viewBox.baseVal.height - 36};
  const [first, last] = extent(rows.map(one => one.row.number)),
    x = scale(first - 0.5, last + 0.5, box.left, box.right, false),
    y = scale(range.low, range.high, box.bottom, box.top, range.log);
  svg.append(...axes(x, y, box, ["trial", values.objective], true));
  let top = null;
  const steps = [],
    points = [],
    marks = draw("g", {class: "marks"}),
    less = values.mode === "min";
  for (const one of rows.filter(one => one.row.counts).sort((a, b) => a.row.number - b.row.number)) {
    if (top === null || (less ? one.reach < top : one.reach > top)) {
      if (top !== null) steps.push([x(one.row.number), y(clamp(top, range))]);
      top = one.reach;
      steps.push([x(one.row.number), y(clamp(top, range))]);
    }
  }
  if (steps.length) svg.append(draw("path", {class: "best-so-far", d: path([...steps, [box.right, steps.at(-1)[1]]])}));
  for (const {row, at, reach} of rows.sort((a, b) => Boolean(colourOf(a.at)) - Boolean(colourOf(b.at)))) {
    const spot = [x(row.number), y(clamp(reach, range))];
    marks.append(
      draw("circle", {...kindOf(row, at), cx: spot[0].toFixed(1), cy: spot[1].toFixed(1), r: colourOf(at) ? 5 : 3.5}),
    );
    points.push([...spot, at, `${row.label}: ${values.objective} ${figure(reach)}\n${row.reason || row.status}`]);
  }
  svg.append(marks);
  nearest(svg, points);
  place.replaceChildren(
    svg,
    make(
      "div",
      {class: "chips"},
      make("span", {class: "key", colour: "var(--c2)"}, make("i"), "best so far"),
      make("span", {class: "key"}, "○ pruned"),
      make("span", {class: "key"}, "● trained to its end"),
    ),
  );
};
const rungs = () =>
  make(
    "div",
    {class: "funnel"},
    values.search.brackets.flatMap(({trials, rungs}, at) => {
      const most = Math.max(...rungs.map(([, count]) => count), trials[1] - trials[0], 1);
      return [
        values.search.brackets.length > 1 &&
          make("h3", null, `Bracket ${at + 1}: trials ${trials[0]} to ${trials[1] - 1}`),
        ...rungs.flatMap(([epochs, count, of]) => [
          make("span", null, plural(epochs, "epoch")),
          make("i", {style: `width:${(count / most) * 100}%`}),
          make("span", null, of === null ? plural(count, "trial") : `${count} of ${plural(of, "trial")}`),
        ]),
      ];
    }),
  );
const weights = () => {
  const found = varied()
    .filter(column => column.weight !== null)
    .sort((a, b) => b.weight - a.weight);
  return found.length
    ? make(
        "div",
        {class: "funnel"},
        found
          .slice(0, 12)
          .flatMap(({name, weight}) => [
            make("span", null, short(name, 26)),
            make("i", {class: "weight", style: `width:${weight * 100}%`}),
            make("span", null, `${(weight * 100).toFixed(0)} %`),
          ]),
      )
    : null;
};

// ---- devices ----
const drawDevices = () => {
  const place = find("devices"),
    {lanes, spans, marks, seconds, flotillas} = values.devices;
  if (!place) return;
  if (!lanes.length) {
    place.replaceChildren(make("p", {class: "note"}, "No member has trained."));
    return;
  }
  const single = chosen.members && spans.length <= 3000;
  const keys = single
    ? [...new Map(spans.map(([lane, row]) => [`${lane} ${row}`, [lane, row]])).entries()].slice(0, 400)
    : lanes.map((_, lane) => [lane, [lane, null]]);
  const high = single ? 14 : Math.min(34, Math.max(18, 240 / lanes.length)),
    gap = single ? 2 : 6,
    phone = place.clientWidth < 560;
  const [svg, width] = frame(place, keys.length * (high + gap) + 40, "Members on each device over time"),
    names = single
      ? phone
        ? 120
        : 250
      : Math.min(Math.max(...lanes.map(lane => lane.device.length)) * 7 + 16, phone ? 84 : 170);
  const box = {left: names, right: width - (single ? 8 : 72), top: 4, bottom: keys.length * (high + gap) + 4},
    x = scale(0, seconds || 1, box.left, box.right, false);
  for (const value of ticks(0, seconds || 1, Math.max(Math.floor((box.right - box.left) / 90), 2), false))
    svg.append(
      draw("line", {class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom}),
      draw("text", {x: x(value), y: box.bottom + 15, "text-anchor": "middle"}, lasting(value)),
    );
  const most = Math.max(...lanes.flatMap(lane => lane.segments.map(([, , count]) => count)), 1),
    top = new Map(),
    rows = new Map();
  const tone = flotilla => (flotillas.length > 1 ? `fill:var(--c${flotillas.indexOf(flotilla) % 6})` : null);
  keys.forEach(([key, [lane, row]], at) => {
    const y = box.top + at * (high + gap),
      name = single ? `${lanes[lane].device} · ${values.rows[row]?.label ?? ""}` : lanes[lane].device;
    if (!top.has(lane)) top.set(lane, y);
    rows.set(`${lane} ${row}`, y);
    svg.append(
      draw("text", {x: names - 8, y: y + high / 2 + 4, "text-anchor": "end"}, short(name, names / 6.3)),
      draw("rect", {class: "empty", x: box.left, width: box.right - box.left, y, height: high, rx: 2}),
    );
    if (single) return;
    for (const [begin, end, count, flotilla] of lanes[lane].segments) {
      const tall = high * (0.35 + (0.65 * count) / most),
        bar = draw("rect", {
          class: "lane",
          x: x(begin),
          width: Math.max(x(end) - x(begin), 0.5),
          y: y + high - tall,
          height: tall,
          style: tone(flotilla),
        });
      svg.append(bar);
      if (x(end) - x(begin) > 84)
        svg.append(
          draw(
            "text",
            {
              x: x(begin) + 6,
              y: y + high - 6,
              style: "fill:#fff;font-weight:600;pointer-events:none;paint-order:stroke;stroke:#0007;stroke-width:2px",
            },
            plural(count, "member"),
          ),
        );
    }
    svg.append(
      draw(
        "text",
        {x: width, y: y + high / 2 + 4, "text-anchor": "end"},
        `idle ${(lanes[lane].idle * 100).toFixed(0)} %`,
      ),
    );
  });
  for (const [lane, row, begin, end, from] of spans) {
    const y = single ? rows.get(`${lane} ${row}`) : top.get(lane) + high - 4;
    if (y === undefined) continue;
    svg.append(
      draw("rect", {
        ...(single ? look(row, "lane") : {class: "assigned", "data-row": row}),
        ...(single && colourOf(row) ? {style: `fill:${colourOf(row)}`} : {}),
        x: x(begin),
        width: Math.max(x(end) - x(begin), 0.5),
        y,
        height: single ? high : 4,
        "pointer-events": single ? null : "none",
      }),
    );
    if (from && single) svg.append(draw("path", {class: "move", d: `M${x(begin)} ${y}l6 ${high / 2}l-6 ${high / 2}Z`}));
  }
  if (!single)
    for (const key of new Set(spans.filter(span => span[4]).map(([lane, , begin]) => `${lane} ${begin}`))) {
      const [lane, begin] = key.split(" ").map(Number),
        y = top.get(lane);
      svg.append(draw("path", {class: "move", d: `M${x(begin)} ${y + 1}l7 5l-7 5Z`}));
    }
  for (const mark of marks.filter(mark => mark.kind === "fault")) {
    const y = (top.get(mark.lane) ?? box.top) + high / 2,
      at = x(mark.seconds);
    svg.append(draw("path", {class: "fault", d: `M${at - 5} ${y - 5}l10 10m0 -10l-10 10`}));
  }
  svg.addEventListener("pointermove", event => {
    const inside = svg.getBoundingClientRect(),
      at = x.back(event.clientX - inside.left),
      y = event.clientY - inside.top,
      number = Math.floor((y - box.top) / (high + gap));
    if (!keys[number] || at < 0 || at > seconds) {
      tell(event, "");
      warm("");
      return;
    }
    const [lane, row] = keys[number][1],
      near = marks.filter(mark => mark.lane === lane && Math.abs(x(mark.seconds) - x(at)) < 7);
    const there = spans.filter(
      span => span[0] === lane && (row === null || span[1] === row) && span[2] <= at && at <= span[3],
    );
    if (row !== null) warm(String(row));
    const who = there
        .slice(0, 8)
        .map(span => values.rows[span[1]]?.label ?? "")
        .join("\n"),
      others = there.length > 8 ? `\nand ${there.length - 8} more` : "";
    tell(
      event,
      `${lanes[lane].device}, ${lasting(at)}: ${there.length ? plural(there.length, "member") : "idle"}${who && `\n${who}`}${others}${near.map(mark => `\n✕ ${mark.text}`).join("")}`,
    );
  });
  svg.addEventListener("pointerleave", event => {
    tell(event, "");
    warm("");
  });
  const faults = marks.filter(mark => mark.kind === "fault").length,
    moves = spans.filter(span => span[4]).length;
  place.replaceChildren(
    svg,
    make(
      "p",
      {class: "note"},
      `${single ? "" : "The height of a lane is the number of members on its device. "}${plural(faults, "fault")} (✕), ${plural(moves, "move")} (▸)${flotillas.length > 1 ? `, ${flotillas.length} flotillas by colour` : ""}.`,
    ),
  );
};

// ---- what Argosy measured ----
// A few rows of many columns stand upright.
const sheet = given => {
  const full = given.columns.flatMap((_, at) =>
    given.rows.some(row => row[at] !== "" && row[at] !== null) ? [at] : [],
  );
  const columns = full.map(at => given.columns[at]),
    rows = given.rows.map(row => full.map(at => row[at]));
  return rows.length * 3 < columns.length
    ? make(
        "table",
        {class: "facts upright"},
        make(
          "tbody",
          null,
          columns.map((name, at) =>
            make(
              "tr",
              null,
              make("th", {scope: "row"}, name),
              rows.map(row => make("td", null, figure(row[at]))),
            ),
          ),
        ),
      )
    : make(
        "table",
        {class: "facts"},
        make(
          "thead",
          null,
          make(
            "tr",
            null,
            columns.map((name, at) =>
              make("th", {scope: "col", class: rows.every(row => typeof row[at] !== "string") ? "number" : null}, name),
            ),
          ),
        ),
        make(
          "tbody",
          null,
          rows.map(row =>
            make(
              "tr",
              null,
              row.map((cell, at) =>
                make("td", {"data-name": columns[at], class: typeof cell === "number" ? "number" : null}, figure(cell)),
              ),
            ),
          ),
        ),
      );
};
const bars = ({unit, parts, rows, stacked}) => {
  const most = Math.max(
      ...rows.map(([, found]) => (stacked ? found.reduce((a, b) => a + b, 0) : Math.max(...found))),
      1e-12,
    ),
    key =
      parts.length > 1 &&
      make(
        "div",
        {class: "chips"},
        parts.map((name, at) =>
          make("span", {class: "key", colour: at ? "var(--grey)" : "var(--c0)"}, make("i"), name),
        ),
      );
  const line = (found, first) =>
    make(
      "span",
      {class: "parts"},
      found.map((value, at) =>
        make("i", {
          style: `width:${(value / most) * 100}%${first === 1 ? ";background:var(--grey)" : ""}`,
          "data-part": at,
        }),
      ),
    );
  return [
    make(
      "div",
      {class: "funnel"},
      rows.flatMap(([label, found]) =>
        stacked
          ? [make("span", null, label), line(found, 0), make("span", null, found.map(figure).join(" + ") + ` ${unit}`)]
          : found.flatMap((value, at) => [
              make("span", null, at ? "" : label),
              line([value], at),
              make("span", null, `${figure(value)} ${unit}`),
            ]),
      ),
    ),
    key,
  ];
};
const drawLines = () =>
  document.querySelectorAll("[data-lines]").forEach(place => {
    const [section, block] = place.dataset.lines.split(" ").map(Number),
      {across, series} = values.sections[section].blocks[block].lines;
    const [svg, width] = frame(place, 190, values.sections[section].blocks[block].text),
      box = {left: 40, right: width - 8, top: 12, bottom: 152};
    const x = scale(...wide(...extent(series.flatMap(line => line[1]))), box.left, box.right, false),
      y = scale(0, Math.max(1, extent(series.flatMap(line => line[2]))[1]), box.bottom, box.top, false),
      points = [];
    svg.append(...axes(x, y, box, [across, null]));
    series.forEach(([name, xs, ys], at) => {
      svg.append(
        draw("path", {
          class: "curve best",
          colour: `var(--c${at % 6})`,
          d: path(xs.map((value, number) => [x(value), y(ys[number])])),
        }),
      );
      xs.forEach((value, number) =>
        points.push([x(value), y(ys[number]), null, `${name}\n${figure(value)}: ${figure(ys[number])}`]),
      );
    });
    nearest(svg, points);
    place.replaceChildren(
      svg,
      make(
        "div",
        {class: "chips"},
        series.map(([name], at) => make("span", {class: "key", colour: `var(--c${at % 6})`}, make("i"), name)),
      ),
    );
  });
const section = ({title, blocks}, number) =>
  panel(
    title,
    null,
    blocks.map((block, at) => [
      make("p", null, block.text),
      block.bars && bars(block.bars),
      block.sheet && sheet(block.sheet),
      block.lines && make("div", {"data-lines": `${number} ${at}`}),
    ]),
  );

// ---- the page ----
const panel = (title, controls, ...parts) =>
  make("section", {class: "panel"}, make("div", {class: "bar"}, make("h2", null, title), controls), ...parts);
const toggle = (name, is, change) =>
  make(
    "button",
    {
      type: "button",
      "aria-pressed": String(is()),
      onclick: ({currentTarget}) => {
        change(!is());
        currentTarget.setAttribute("aria-pressed", String(is()));
      },
    },
    name,
  );
const isDark = () => document.documentElement.dataset.theme === "dark";
const keep = theme => {
  try {
    localStorage.setItem("argosy-theme", theme);
  } catch {
    /* a browser may allow no storage to files */
  }
};
const kept = () => {
  try {
    return localStorage.getItem("argosy-theme");
  } catch {
    return null;
  }
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const shade = () => {
  document.documentElement.dataset.theme = kept() ?? (dark.matches ? "dark" : "light");
  find("dark")?.setAttribute("aria-pressed", String(isDark()));
};
const clear = () =>
  make(
    "button",
    {
      type: "button",
      id: "clear",
      hidden: !chosen.picked.length,
      onclick: () => {
        chosen.picked = [];
        redraw();
      },
    },
    `Clear the selection`,
  );
const build = () => {
  const {name, directory, status, reason, cards, rows, columns, means, search, devices, sections} = values;
  const head = make(
    "header",
    null,
    make("h1", null, name),
    status && make("span", {class: `status ${status}`}, `${status}${live ? ", live" : ""}`),
    make("span", {class: "path"}, [directory, reason].filter(Boolean).join(" · ")),
    make(
      "button",
      {
        type: "button",
        id: "dark",
        "aria-pressed": String(isDark()),
        onclick: () => {
          keep(isDark() ? "light" : "dark");
          shade();
        },
      },
      "Dark",
    ),
  );
  const parts = [];
  if (cards) parts.push(make("div", {class: "cards"}, cards.map(card)));
  if (columns) {
    const curves = curvesPanel(),
      panels = [];
    if (search) panels.push(panel("Trials", null, make("div", {id: "history"})));
    if (search && search.objectives.length > 1)
      panels.push(
        panel(
          "Pareto set",
          null,
          make(
            "p",
            {class: "note"},
            `${plural(search.pareto.length, "trial")}, first in the table: no other trial is better in one objective and at least as good in the others.`,
          ),
          make("div", {id: "front", class: "small"}),
        ),
      );
    panels.push(curves);
    if (search) {
      const shares = weights();
      panels.push(
        panel(
          "Rungs",
          null,
          make(
            "p",
            {class: "note"},
            `How many trials have trained to each number of epochs, and how many will. Scheduler ${search.scheduler}, sampler ${search.sampler}.`,
          ),
          rungs(),
        ),
      );
      if (shares)
        panels.push(
          panel(
            "Importance",
            null,
            make(
              "p",
              {class: "note"},
              `Share of the variance of the trials' ranks by ${values.objective} that each parameter explains alone, pruned trials included. With so many trials, one in ten parameters without influence shows more than ${(values.chance * 100).toFixed(0)} %.`,
            ),
            shares,
          ),
        );
    }
    if (varied().length && worth()) {
      panels.push(
        panel(
          `${values.noun === "trial" ? "Parameters" : "Hyper-parameters"} against ${values.objective}`,
          null,
          make("div", {id: "scatter", class: "small"}),
        ),
        panel("Parallel coordinates", null, make("div", {id: "parallel"})),
      );
    }
    if (panels.length % 2) curves.classList.add("wide");
    parts.push(make("div", {class: "split"}, panels));
    const states = [...new Set(rows.map(row => row.status))],
      equal = columns.filter(column => column.equal && column.name !== values.objective).length;
    parts.push(
      panel(
        values.noun === "trial" ? "All trials" : "Members",
        [
          make("input", {
            id: "query",
            type: "search",
            placeholder: "Search",
            "aria-label": `Search ${values.noun}s`,
            value: chosen.query,
            oninput: ({target}) => {
              chosen.query = target.value;
              drawTable();
            },
          }),
          states.length > 1 &&
            make(
              "select",
              {
                id: "status",
                "aria-label": "State",
                onchange: ({target}) => {
                  chosen.status = target.value;
                  drawTable();
                },
              },
              make("option", {value: ""}, "any state"),
              states.map(one => make("option", {value: one, selected: one === chosen.status}, one)),
            ),
          equal > 0 &&
            toggle(
              `${plural(equal, "column")} equal for all`,
              () => chosen.equal,
              on => {
                chosen.equal = on;
                drawTable();
              },
            ),
        ],
        make("div", {id: "table"}),
      ),
    );
  }
  if (means) parts.push(section(means, -1));
  const told =
    devices.marks.length > 0 &&
    make(
      "details",
      null,
      make("summary", null, `${plural(devices.marks.length, "event")}`),
      sheet({
        columns: ["after", "what", "told"],
        rows: devices.marks.map(mark => [lasting(mark.seconds), mark.kind, mark.text]),
      }),
    );
  const foldable = devices.spans.length > devices.lanes.length && devices.spans.length <= 3000;
  parts.push(
    panel(
      "Devices and members",
      foldable &&
        toggle(
          "unfold members",
          () => chosen.members,
          on => {
            chosen.members = on;
            drawDevices();
          },
        ),
      make("div", {id: "devices"}),
      told,
    ),
  );
  if (sections) parts.push(make("div", {class: "columns"}, sections.map(section)));
  const focused = document.activeElement?.id,
    at = document.activeElement?.selectionStart;
  document.body.querySelectorAll("header, main, .tip").forEach(node => node.remove());
  document.body.prepend(head, make("main", null, parts), tip);
  redraw();
  if (focused && find(focused)) {
    find(focused).focus();
    if (typeof at === "number" && find(focused).type === "search") find(focused).setSelectionRange(at, at);
  }
};
const redraw = () => {
  const button = find("clear");
  if (button) button.hidden = !chosen.picked.length;
  for (const one of [drawCurves, drawHistory, drawFront, drawTable, drawScatter, drawParallel, drawDevices, drawLines]) one();
};

// ---- news of a live page ----
let mark = "";
function show(other, news) {
  if (other === mark) return;
  mark = other;
  const names = chosen.picked.map(at => values.rows[at].name);
  values = news;
  document.title = values.title;
  chosen.picked = names.map(name => values.rows.findIndex(row => row.name === name)).filter(at => at >= 0);
  build();
}
function poll() {
  const script = document.createElement("script");
  script.onload = () => {
    script.remove();
    setTimeout(poll, live.seconds * 1000);
  };
  // A page that has seen news which are gone has a whole one beside it; a copy of a live page has none.
  script.onerror = () => {
    if (mark) location.reload();
  };
  script.src = `${live.news}?${Date.now()}`;
  document.head.append(script);
}
recall();
shade();
dark.addEventListener("change", shade);
build();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) {
    width = innerWidth;
    redraw();
  }
});
addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
});
addEventListener("afterprint", shade);
if (live) poll();
