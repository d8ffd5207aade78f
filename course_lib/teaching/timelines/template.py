"""The page that :mod:`.page` fills in, as one text; it loads nothing."""

__all__ = ["TEMPLATE"]

TEMPLATE = r"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{{title}}</title>
<style>
body { margin: 0; font: 13px "Helvetica Neue", Arial, "Liberation Sans", sans-serif; color: #1F2328;
  background: #FFFFFF; }
h1 { font-size: 15px; margin: 8px 12px 4px; }
#bar { margin: 0 12px 4px; color: #57606A; }
button { font: inherit; min-width: 2em; }
canvas { display: block; width: 100%; cursor: grab; outline-offset: -2px; touch-action: pan-y; }
canvas:active { cursor: grabbing; }
#tip { position: fixed; display: none; background: #1F2328; color: #FFFFFF; padding: 3px 7px;
  border-radius: 4px; pointer-events: none; max-width: 60%;
  overflow-wrap: anywhere; }
#key span { display: inline-block; margin-right: 14px; }
#key i { display: inline-block; width: 22px; height: 11px; margin-right: 5px;
  border: 1px solid #57606A; }
#key { margin: 4px 12px; color: #57606A; }
</style></head><body>
<h1>{{title}}</h1>
<div id="bar"><button id="in" aria-label="zoom in">+</button>
<button id="out" aria-label="zoom out">&minus;</button>
<button id="all" aria-label="show all">all</button>
<span id="range" role="status"></span>
<small>wheel or pinch: zoom; drag: move; keys: + &minus; &larr; &rarr; 0</small></div>
<canvas id="c" tabindex="0" role="img"
  aria-label="Timeline: + and - zoom, the arrow keys move, 0 shows all"></canvas>
<div id="key">
<span><i style="background:#57606A"></i>computing</span>
<span><i style="background:repeating-linear-gradient(#57606A 0 4px,#FFFFFF 4px 5px)"></i>computing
while messages are under way</span>
<span><i style="background:#CDCFD2"></i>sending</span>
<span><i style="background:repeating-linear-gradient(135deg,#FFFFFF 0 4px,#8C959F 4px 6px)"></i
>waiting</span>
<span>thin bars: messages and collectives</span></div>
<div id="tip"></div>
<script>
"use strict";
const data = {{data}};
const LEFT = 76, TOP = 8, AXIS = 26, ROWS = data.rows, LANE = data.lane;
const canvas = document.getElementById("c"), pen = canvas.getContext("2d");
const tip = document.getElementById("tip");
const whole = Math.max(data.seconds, 1e-9);
let from = 0, to = whole, width = 0, height = 0;

function pattern(draw) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  draw(tile.getContext("2d"));
  return pen.createPattern(tile, "repeat");
}
const waits = pattern(p => {
  p.fillStyle = "#FFFFFF"; p.fillRect(0, 0, 8, 8);
  p.strokeStyle = "#8C959F"; p.lineWidth = 1.5;
  for (const d of [-8, 0, 8]) { p.beginPath(); p.moveTo(d, 8); p.lineTo(d + 8, 0); p.stroke(); }
});
const overlaps = {};
for (const lane of data.lanes) overlaps[lane.rank] = pattern(p => {
  p.fillStyle = lane.colour; p.fillRect(0, 0, 8, 8);
  p.fillStyle = "#FFFFFF"; p.fillRect(0, 5, 8, 1.5);
});

const x = t => LEFT + (t - from) / (to - from) * (width - LEFT - 8);
const t = px => from + (px - LEFT) / (width - LEFT - 8) * (to - from);

function time(seconds, step, size = step) {
  const [scale, unit] = size >= 0.5 ? [1, "s"] : size >= 5e-4 ? [1e3, "ms"] : [1e6, "\u00b5s"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step * scale) - 1e-9));
  return (seconds * scale).toFixed(digits) + " " + unit;
}

function visible(spans, a, b) {  // of spans in order of their starts
  return spans.filter(s => s[b] >= from && s[a] <= to);
}

function paint() {
  const ratio = window.devicePixelRatio || 1;
  width = canvas.clientWidth;
  if (width < LEFT + 40) return;  // not shown yet, or nothing would be seen
  height = TOP + LANE * data.lanes.length + AXIS;
  canvas.style.height = height + "px";
  canvas.width = width * ratio; canvas.height = height * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = "#FFFFFF"; pen.fillRect(0, 0, width, height);
  pen.font = "12px Arial, sans-serif"; pen.textBaseline = "middle";
  const ticks = Math.max(2, Math.min(7, Math.floor((width - LEFT) / 85)));
  const rough = (to - from) / ticks, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  pen.textAlign = "center";
  for (let n = Math.ceil(from / step); n * step <= to; n++) {
    pen.fillStyle = "#D0D7DE"; pen.fillRect(x(n * step), TOP, 1, height - AXIS - TOP + 4);
    pen.fillStyle = "#57606A";
    const words = time(n * step, step), half = pen.measureText(words).width / 2;
    pen.fillText(words, Math.min(x(n * step), width - half - 2), height - AXIS / 2 + 3);
  }
  pen.save();
  pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - 8, height); pen.clip();
  data.lanes.forEach((lane, index) => {
    const y = TOP + LANE * index + 18;
    for (const [state, a, b] of visible(lane.program, 1, 2)) {
      pen.fillStyle = [lane.colour, overlaps[lane.rank], lane.pale, waits][state];
      pen.fillRect(x(a), y, Math.max(x(b) - x(a), 0.7), 24);
    }
    lane.rows.slice(0, ROWS).forEach((row, r) => {
      pen.fillStyle = "#57606A";
      for (const [a, b] of visible(row, 0, 1))
        pen.fillRect(x(a), y + 26 + 6 * r, Math.max(x(b) - x(a) - 0.5, 0.7), 5);
    });
    pen.fillStyle = "#1F2328"; pen.textAlign = "center";
    for (const [a, b, name] of visible(lane.sections, 0, 1)) {
      const left = Math.max(x(a), LEFT), right = Math.min(x(b), width - 8);
      pen.fillRect(left, y - 4, Math.max(right - left - 1, 0.7), 2);
      if (pen.measureText(name).width < right - left - 4)
        pen.fillText(name, (left + right) / 2, y - 11);
    }
  });
  pen.restore();
  pen.textAlign = "left"; pen.font = "bold 12px Arial, sans-serif";
  data.lanes.forEach((lane, index) => {
    const y = TOP + LANE * index + 30;
    pen.fillStyle = lane.colour; pen.fillRect(8, y - 9, 5, 18);
    pen.fillStyle = "#1F2328"; pen.fillText("rank " + lane.rank, 18, y);
  });
  document.getElementById("range").textContent =
    time(from, step / 10, step) + " to " + time(to, step / 10, step);
}

function zoom(factor, around) {
  const length = Math.min(Math.max((to - from) * factor, 1e-7), whole);
  const share = (around - from) / (to - from);
  move(around - share * length, length);
}
function move(start, length) {
  from = Math.min(Math.max(start, 0), whole - length);
  to = from + length;
  paint();
}
function found(event) {
  const box = canvas.getBoundingClientRect();
  const index = Math.floor((event.clientY - box.top - TOP) / LANE);
  const lane = data.lanes[index], at = t(event.clientX - box.left);
  if (!lane || event.clientX - box.left < LEFT) return "";
  const y = event.clientY - box.top - TOP - LANE * index;
  const near = (to - from) / width;
  const hit = (spans, a, b) => spans.find(s => s[a] - near <= at && at <= s[b] + near);
  const length = s => time(s, Math.max(s / 100, 1e-8), s / 2);
  if (y < 16) {
    const s = hit(lane.sections, 0, 1);
    return s ? s[2] + ": " + length(s[1] - s[0]) : "";
  }
  if (y > 43) {
    const row = lane.rows[Math.min(Math.floor((y - 43) / 6), ROWS - 1)];
    const s = row && hit(row, 0, 1);
    if (s) return s[2] + ": " + length(s[1] - s[0]);
  }
  const s = hit(lane.program, 1, 2);
  if (!s) return "";
  return data.states[s[0]] + (s[3] ? " (" + s[3] + ")" : "") + ": " + length(s[2] - s[1]);
}

const place = event => event.clientX - canvas.getBoundingClientRect().left;
const held = new Map();  // where each pointer is that is down: one moves, two zoom
canvas.addEventListener("wheel", event => {
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {  // a touchpad, sideways
    move(from + event.deltaX / width * (to - from), to - from);
  } else if (event.deltaY > 0 && to - from >= whole) {
    return;  // nothing to zoom out of: the page around may scroll
  } else {
    const lines = event.deltaMode ? 30 : 1;
    const far = Math.max(-200, Math.min(200, event.deltaY * lines));
    zoom(Math.exp(far * (event.ctrlKey ? 0.01 : 0.002)), t(place(event)));  // ctrl: a pinch
  }
  event.preventDefault();
}, { passive: false });
canvas.addEventListener("pointerdown", event => {
  tip.style.display = "none";
  held.set(event.pointerId, place(event)); canvas.setPointerCapture(event.pointerId);
});
for (const name of ["pointerup", "pointercancel"])
  canvas.addEventListener(name, event => { held.delete(event.pointerId); });
canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
canvas.addEventListener("pointermove", event => {
  if (held.has(event.pointerId)) {
    const before = held.get(event.pointerId), now = place(event);
    const other = [...held].find(([id]) => id !== event.pointerId);
    held.set(event.pointerId, now);
    if (!other) move(from - (now - before) / (width - LEFT - 8) * (to - from), to - from);
    else if (Math.min(Math.abs(now - other[1]), Math.abs(before - other[1])) > 9)
      zoom(Math.abs(before - other[1]) / Math.abs(now - other[1]), t((now + other[1]) / 2));
    return;
  }
  const words = found(event);
  tip.style.display = words ? "block" : "none";
  tip.textContent = words;
  const [x, y, w, h] = [event.clientX, event.clientY, tip.offsetWidth, tip.offsetHeight];
  tip.style.left = Math.max(0, Math.min(x + 12, window.innerWidth - w - 4)) + "px";
  tip.style.top = (y + 16 + h < window.innerHeight ? y + 16 : Math.max(0, y - h - 8)) + "px";
});
canvas.addEventListener("dblclick", () => move(0, whole));
canvas.addEventListener("keydown", event => {
  const middle = (from + to) / 2, length = to - from;
  if (event.key === "+" || event.key === "=") zoom(0.8, middle);
  else if (event.key === "-") zoom(1.25, middle);
  else if (event.key === "ArrowLeft") move(from - length / 10, length);
  else if (event.key === "ArrowRight") move(from + length / 10, length);
  else if (event.key === "0" || event.key === "Home") move(0, whole);
  else return;
  event.preventDefault();
});
document.getElementById("in").onclick = () => zoom(0.5, (from + to) / 2);
document.getElementById("out").onclick = () => zoom(2, (from + to) / 2);
document.getElementById("all").onclick = () => move(0, whole);
let painted = 0;  // the width; a page in a closed fold has none
new ResizeObserver(() => {
  if (canvas.clientWidth !== painted) { painted = canvas.clientWidth; paint(); }
}).observe(canvas);
</script></body></html>
"""
