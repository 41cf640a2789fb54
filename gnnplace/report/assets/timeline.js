// The lanes of one or two steps on one time axis: ops as bars, tensors on their way as arrows.
// Narrow ops share columns of pixels, which are as high as the device is busy there. Wide ones fill
// theirs, up to a gap before what follows.
const MOST_ARROWS = 600, TOP = 22, HEADING = 22, WIDE = 5, LETTER = 6.6, PALE = 0.22, MARK = 3;
const lanes = []; // what was drawn: step, device, y, height
let arrows = []; // what was drawn: step, transfer, ends in pixels
let cover = new Float32Array(0); // share of each pixel column by kind, first what stands out

function layLanes() {
  lanes.length = 0;
  const count = view.steps.reduce((sum, step) => sum + step.devices.length, 0);
  const height = Math.min(40, Math.max(11, Math.floor(460 / count))), gap = Math.min(14, Math.max(3, height / 3));
  let y = TOP;
  for (const step of view.steps) {
    y += HEADING;
    for (let device = 0; device < step.devices.length; device++, y += height + gap) lanes.push({ step, device, y, height });
  }
  return y + 2;
}

function paintTimeline() {
  const canvas = byId("timeline"), height = layLanes(), [pen, width] = fitted(canvas, height);
  drawAxis(pen, width, height);
  view.steps.forEach(step => drawHeading(pen, step));
  for (const lane of lanes) drawLane(pen, lane, width);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width - LEFT - RIGHT, height);
  pen.clip();
  const left = drawArrows(pen, width);
  if (view.chosen) drawChosen(pen, width);
  pen.restore();
  for (const lane of lanes) drawName(pen, lane);
  sayHint(left);
}

function drawAxis(pen, width, height) {
  const span = view.end - view.start, wish = span / Math.max(2, (width - LEFT) / 130), size = 10 ** Math.floor(Math.log10(wish));
  const stride = [1, 2, 5, 10].map(k => k * size).find(k => k >= wish), scale = scaleOf(width);
  pen.strokeStyle = view.colours.line;
  pen.fillStyle = view.colours.soft;
  pen.lineWidth = 1;
  for (let k = Math.ceil(view.start / stride); k * stride <= view.end; k++) {
    const x = Math.round(LEFT + (k * stride - view.start) * scale) + 0.5;
    pen.beginPath();
    pen.moveTo(x, TOP - 4);
    pen.lineTo(x, height);
    pen.stroke();
    if (x < width - 50) pen.fillText(axisText(k * stride, stride), x + 3, 13);
  }
}

// A place on the axis, with as many digits as tell it from the next one.
function axisText(value, stride) {
  const [size, unit] = SECONDS.find(([least]) => Math.abs(value) >= least) || SECONDS[SECONDS.length - 1];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(stride / size) - 1e-9)));
  return value === 0 ? "0" : `${(value / size).toFixed(digits)} ${unit}`;
}

function drawHeading(pen, step) {
  const first = lanes.find(lane => lane.step === step), time = step.step_time === null ? "cannot run" : seconds(step.step_time);
  pen.fillStyle = view.colours.text;
  pen.font = "600 12.5px system-ui, sans-serif";
  pen.fillText(`${step.label}: ${time}`, LEFT, first.y - 6);
  pen.font = "12px system-ui, sans-serif";
}

function drawName(pen, lane) {
  pen.fillStyle = view.colours.text;
  pen.fillText(short(lane.step.devices[lane.device], 13), 2, lane.y + lane.height / 2 + 4);
}

const dimmed = (step, span) => (view.query !== "" && !step.graph.found[step.op[span]]) || (view.path && !step.critical[span]);

function drawLane(pen, lane, width) {
  const kinds = lane.step.graph.kinds.length, place = lying(width), height = Math.round((lane.height + MARK) * place.dense);
  const found = strip(place.width, height, pixel(view.colours.card)), size = 2 * kinds * place.width;
  if (cover.length < size) cover = new Float32Array(size);
  cover.fill(0, 0, size);
  const { labels, marks } = coverColumns(lane, place, kinds);
  paintColumns(found, Math.round(lane.height * place.dense), kinds);
  paintMarks(found, marks, Math.round(2 * place.dense));
  pen.putImageData(found.image, place.left, Math.round(lane.y * place.dense));
  if (lane.height >= 13) drawLabels(pen, lane, labels);
}

// Sums up by pixel column what the ops in view take; returns those wide enough for their names, and
// the columns of what stands out.
function coverColumns({ step, device }, place, kinds) {
  const spans = step.lanes[device], { width, dense } = place, scale = width / (view.end - view.start), labels = [], marks = [];
  const all = view.query === "" && !view.path;
  for (let i = step.firstAfter(spans, view.start); i < spans.length && step.start[spans[i]] <= view.end; i++) {
    const span = spans[i], shown = all || !dimmed(step, span), row = (step.graph.kind[step.op[span]] + (shown ? 0 : kinds)) * width;
    const x0 = Math.max(0, (step.start[span] - view.start) * scale), x1 = Math.min(width, (step.finish[span] - view.start) * scale);
    const first = Math.min(width - 1, Math.round(x0)), last = Math.max(first + 1, Math.min(width, Math.round(x1)));
    if (x1 - x0 < WIDE * dense) coverShares(row, x0, x1, width);
    else cover.fill(1, row + first, row + last - 1);
    if (shown && x1 - x0 > 30 * dense) labels.push(span);
    if (shown && !all && !(marks[marks.length - 1] >= last)) marks.push(first, last);
  }
  return { labels, marks };
}

// What a narrow op takes of each column that it is in.
function coverShares(row, x0, x1, width) {
  for (let x = Math.floor(x0); x < x1 && x < width; x++) cover[row + x] += Math.min(x1, x + 1) - Math.max(x0, x);
}

function paintColumns(found, height, kinds) {
  const { width } = found, empty = pixel(view.colours.back);
  const colours = Array.from({ length: 2 * kinds }, (_, k) => (k < kinds ? pixel(kindColour(k)) : pixel(view.colours.soft, view.colours.back, PALE)));
  for (let x = 0; x < width; x++) {
    let bottom = height;
    for (let kind = 0; kind < 2 * kinds && bottom > 0; kind++) {
      const share = cover[kind * width + x];
      if (share <= 0) continue;
      const top = Math.max(0, bottom - Math.max(1, Math.round(share * height)));
      fillColumn(found, x, top, bottom, colours[kind]);
      bottom = top;
    }
    fillColumn(found, x, 0, bottom, empty);
  }
}

// A line under what stands out, which is seen however narrow the ops are.
function paintMarks(found, marks, thick) {
  const colour = pixel(view.colours.found), top = found.height - thick;
  for (let k = 0; k < marks.length; k += 2)
    for (let x = marks[k]; x < marks[k + 1]; x++) fillColumn(found, x, top, found.height, colour);
}

function drawLabels(pen, { step, y, height }, spans) {
  const width = byId("timeline").clientWidth, scale = scaleOf(width);
  for (const span of spans) {
    const kind = step.graph.kind[step.op[span]], begin = Math.max(LEFT, LEFT + (step.start[span] - view.start) * scale);
    const end = Math.min(width - RIGHT, LEFT + (step.finish[span] - view.start) * scale), letters = Math.floor((end - begin - 8) / LETTER);
    if (letters < 3) continue;
    pen.fillStyle = kind % 8 === 1 || kind % 8 === 4 ? view.colours["label-dark"] : view.colours.label;
    pen.fillText(short(step.graph.names[step.op[span]], letters), begin + 4, y + height / 2 + 4);
  }
}

// Draws arrows if they are few enough to be told apart; returns how many are in view and not drawn.
function drawArrows(pen, width) {
  arrows = [];
  if (!view.arrows) return 0;
  const moves = view.steps.map(movesInView), count = moves.reduce((sum, own) => sum + own.length, 0);
  if (count > MOST_ARROWS) return count;
  const scale = scaleOf(width);
  view.steps.forEach((step, number) => {
    const own = lanes.filter(lane => lane.step === step);
    for (const transfer of moves[number]) arrows.push(placedArrow(step, transfer, own, scale));
  });
  const pale = arrows.filter(({ step, from }) => from >= 0 && dimmed(step, from)), strong = arrows.filter(arrow => !pale.includes(arrow));
  strokeArrows(pen, pale, 0.15);
  strokeArrows(pen, strong, arrows.length > 200 ? 0.5 : 0.8);
  return 0;
}

function movesInView({ transfers: t }) {
  const found = [];
  for (let k = 0; k < t.op.length; k++) if (t.finish[k] >= view.start && t.start[k] <= view.end) found.push(k);
  return found;
}

function placedArrow(step, transfer, own, scale) {
  const t = step.transfers, from = own[t.source[transfer]], to = own[t.target[transfer]], down = to.y > from.y;
  return { step, transfer, from: step.spanOf[t.op[transfer]],
    x0: LEFT + (t.start[transfer] - view.start) * scale, y0: down ? from.y + from.height : from.y,
    x1: LEFT + (t.finish[transfer] - view.start) * scale, y1: down ? to.y : to.y + to.height };
}

function strokeArrows(pen, some, strength) {
  pen.globalAlpha = strength;
  pen.strokeStyle = pen.fillStyle = view.colours.text;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const { x0, y0, x1, y1 } of some) { pen.moveTo(x0, y0); pen.lineTo(x1, y1); }
  pen.stroke();
  pen.beginPath();
  for (const { x1, y0, y1 } of some) {
    const back = y1 > y0 ? -5 : 5;
    pen.moveTo(x1, y1);
    pen.lineTo(x1 - 2.6, y1 + back);
    pen.lineTo(x1 + 2.6, y1 + back);
  }
  pen.fill();
  pen.globalAlpha = 1;
}

function drawChosen(pen, width) {
  const scale = scaleOf(width);
  pen.lineWidth = 2;
  pen.strokeStyle = view.colours.text;
  for (const { step, device, y, height } of lanes) {
    if (step.graph !== view.chosen.step.graph) continue;
    const span = step.spanOf[view.chosen.op];
    if (span < 0 || step.device[span] !== device) continue;
    const x = LEFT + (step.start[span] - view.start) * scale, size = (step.finish[span] - step.start[span]) * scale;
    pen.strokeRect(x - 1, y - 2, Math.max(size, 1) + 2, height + 4);
  }
}

const HINT = "Drag to move; Ctrl and the wheel zoom, and the wheel alone does once the timeline was clicked; a double click shows the whole step. " +
  "Keys: arrows move, + and − zoom, 0 shows all, N and P go to the next and the previous op of a device, W to what it waited for. " +
  "Where ops are narrow, the height is the share of time that the device is busy.";

function sayHint(left) {
  const told = left ? `${many(left, "transfer")} are in view; they are drawn from ${MOST_ARROWS} down, so zoom in. ` : "", box = byId("hint");
  if (box.textContent !== told + HINT) box.textContent = told + HINT;
}
painters.push(["timeline", paintTimeline]);
