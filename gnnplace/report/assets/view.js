// What is shown of which steps, and when it is drawn anew: once a frame, however much changed.
const data = readData();
const LEFT = 92, RIGHT = 8, CLOSEST = 1e-12;
const view = { start: 0, end: 1, steps: [], query: "", path: false, arrows: true, chosen: null, colours: {} };
const painters = [], changed = new Set();
let asked = false;

function redraw(...what) {
  for (const name of what) changed.add(name);
  if (asked) return;
  asked = true;
  requestAnimationFrame(drawFrame);
}

function drawFrame() {
  asked = false;
  const names = new Set(changed);
  changed.clear();
  for (const [name, paint] of painters) if (names.has(name)) paint();
}

const whole = () => Math.max(...view.steps.map(step => step.step_time || 0), CLOSEST);

function show(start, end) {
  const most = 1.02 * whole(), size = Math.min(Math.max(end - start, whole() * 1e-7), most);
  view.start = Math.min(Math.max(start, -0.02 * whole()), most - 0.5 * size);
  view.end = view.start + size;
  redraw("timeline", "memory");
}
const showAll = () => show(0, 1.02 * whole());

function zoom(factor, share = 0.5) {
  const middle = view.start + share * (view.end - view.start), size = (view.end - view.start) * factor;
  show(middle - share * size, middle + (1 - share) * size);
}
function pan(share) {
  const by = share * (view.end - view.start);
  show(view.start + by, view.end + by);
}

// A canvas of a height in pixels, cleared and sharp on dense screens: its context and its width.
function fitted(canvas, height) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth, dense = devicePixelRatio || 1;
  if (canvas.height !== Math.round(height * dense) || canvas.width !== Math.round(width * dense)) {
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return [pen, width];
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["back", "card", "text", "soft", "line", "accent", "found", "label", "label-dark"])
    view.colours[name] = style.getPropertyValue(`--${name}`).trim();
  view.kinds = Array.from({ length: 8 }, (_, k) => style.getPropertyValue(`--k${k}`).trim());
}
const kindColour = kind => view.kinds[kind % view.kinds.length];
const deviceColour = device => view.kinds[[0, 1, 2, 3, 4, 5, 6, 7][device % 8]];
const short = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text);
const scaleOf = width => (width - LEFT - RIGHT) / (view.end - view.start);
