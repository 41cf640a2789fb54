// Pointer and keys on the timeline.
let drag = null;

function hitAt(event) {
  const box = byId("timeline").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const scale = scaleOf(box.width), lane = lanes.find(one => y >= one.y - 1 && y <= one.y + one.height + 3);
  if (lane && x >= LEFT) {
    const span = lane.step.spanAt(lane.device, view.start + (x - LEFT) / scale, 2.5 / scale);
    if (span >= 0) return { step: lane.step, span };
  }
  const near = arrows.find(arrow => awayFrom(arrow, x, y) < 4);
  return near ? { step: near.step, transfer: near.transfer } : null;
}

function awayFrom({ x0, y0, x1, y1 }, x, y) {
  const dx = x1 - x0, dy = y1 - y0, share = Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - x0 - share * dx, y - y0 - share * dy);
}

function told(hit) {
  if (!hit) return "";
  return hit.span === undefined ? transferTold(hit.step, hit.transfer) : briefly(hit.step, hit.span);
}

function move(event) {
  if (!drag) return tip(event, told(hitAt(event)));
  const width = byId("timeline").clientWidth, by = ((drag.x - event.clientX) / (width - LEFT - RIGHT)) * (drag.end - drag.start);
  drag.far = drag.far || Math.abs(drag.x - event.clientX) > 3;
  if (drag.far) { tip(event, ""); show(drag.start + by, drag.end + by); }
}

function release(event) {
  const hit = drag && !drag.far ? hitAt(event) : null;
  if (hit && hit.span !== undefined) choose(hit.step, hit.step.op[hit.span]);
  if (hit && hit.span === undefined) choose(hit.step, hit.step.transfers.op[hit.transfer]);
  drag = null;
}

function turn(event) {
  const own = document.activeElement === event.currentTarget, sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (!sideways && !event.ctrlKey && !event.metaKey && !own) return;
  event.preventDefault();
  if (sideways) return pan(event.deltaX / 800);
  const box = event.currentTarget.getBoundingClientRect(), share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
  zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 240), Math.min(1, Math.max(0, share)));
}

// The op after or before the chosen one on its device; the first in view where none is chosen.
function stride(by) {
  const step = view.chosen ? view.chosen.step : view.steps[0];
  const span = view.chosen ? step.spanOf[view.chosen.op] : -1;
  if (span < 0) {
    const lane = step.lanes.find(own => own.length) || [], first = lane[Math.min(lane.length - 1, step.firstAfter(lane, view.start))];
    return first === undefined ? null : choose(step, step.op[first], true);
  }
  const next = step.lanes[step.device[span]][step.place[span] + by];
  return next === undefined ? null : choose(step, step.op[next], true);
}

function waitedFor() {
  if (!view.chosen) return;
  const { step, op } = view.chosen, span = step.spanOf[op], kind = span < 0 ? 0 : step.cause.kind[span];
  if (kind && kind !== 255) choose(step, step.cause.op[span], true);
}

const KEYS = {
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(1 / 1.4), "=": () => zoom(1 / 1.4), "-": () => zoom(1.4),
  ArrowUp: () => zoom(1 / 1.4), ArrowDown: () => zoom(1.4), 0: showAll, Home: showAll, n: () => stride(1), p: () => stride(-1), w: waitedFor,
  Escape: () => choose(view.steps[0], -1),
};

function watchTimeline() {
  const canvas = byId("timeline");
  canvas.addEventListener("wheel", turn, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    drag = { x: event.clientX, start: view.start, end: view.end, far: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerleave", event => tip(event, ""));
  canvas.addEventListener("dblclick", showAll);
  canvas.addEventListener("keydown", event => {
    const act = KEYS[event.key] || KEYS[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}
