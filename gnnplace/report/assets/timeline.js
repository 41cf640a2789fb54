// The lanes of one or two steps on one time axis: ops as bars, tensors on their way as arrows.
// Ops narrower than a pixel share their columns: a column is as high as the device is busy there.
const MOST_ARROWS = 1500, TOP = 22, HEADING = 22, WIDE = 1.5, LETTER = 6.6;
const lanes = []; // what was drawn: step, device, y, height
let arrows = []; // what was drawn: step, transfer, ends in pixels

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
  view.steps.forEach((step, number) => drawHeading(pen, step, number));
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width - LEFT - RIGHT, height);
  pen.clip();
  for (const lane of lanes) drawLane(pen, lane, width);
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

function drawHeading(pen, step, number) {
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
  const { step, device, y, height } = lane, spans = step.lanes[device], scale = scaleOf(width), kinds = step.graph.kinds.length;
  const bars = Array.from({ length: 2 * kinds }, () => []), columns = new Float32Array(2 * kinds * (width + 1));
  const searching = view.query !== "", found = step.graph.found, kindOf = step.graph.kind, marks = [];
  pen.fillStyle = view.colours.back;
  pen.fillRect(LEFT, y, width, height);
  for (let i = step.firstAfter(spans, view.start); i < spans.length; i++) {
    const span = spans[i], begin = step.start[span];
    if (begin > view.end) break;
    const op = step.op[span], shown = (!searching || found[op] === 1) && (!view.path || step.critical[span] === 1);
    const x0 = Math.max(LEFT + (begin - view.start) * scale, LEFT - 4), x1 = Math.min(LEFT + (step.finish[span] - view.start) * scale, width + 4);
    const kind = shown ? kindOf[op] : kindOf[op] + kinds;
    if (x1 - x0 >= WIDE) bars[kind].push(x0, x1 - x0, span);
    else columns[kind * (width + 1) + Math.min(width, x0 | 0)] += x1 - x0;
    if (shown && (searching || view.path)) marks.push(x0, Math.max(1, x1 - x0));
  }
  drawColumns(pen, lane, columns, width, kinds);
  bars.forEach((list, kind) => drawBars(pen, lane, list, kind, kinds));
  drawMarks(pen, lane, marks);
}

function drawColumns(pen, lane, columns, width, kinds) {
  const used = new Float32Array(width + 1);
  for (let kind = 0; kind < 2 * kinds; kind++) {
    pen.globalAlpha = kind < kinds ? 1 : 0.22;
    pen.fillStyle = kind < kinds ? kindColour(kind) : view.colours.soft;
    const from = kind * (width + 1);
    for (let x = 0; x <= width; x++) {
      const share = Math.min(columns[from + x], 1 - used[x]);
      if (share <= 0) continue;
      pen.fillRect(x, lane.y + lane.height * (1 - used[x] - share), 1, Math.max(lane.height * share, 0.6));
      used[x] += share;
    }
  }
  pen.globalAlpha = 1;
}

function drawBars(pen, lane, list, kind, kinds) {
  const { step, y, height } = lane, shown = kind < kinds;
  pen.globalAlpha = shown ? 1 : 0.22;
  pen.fillStyle = shown ? kindColour(kind) : view.colours.soft;
  for (let i = 0; i < list.length; i += 3) {
    const room = list[i + 1] > 4 ? 1 : list[i + 1] > 2.5 ? 0.5 : 0;
    pen.fillRect(list[i], y, list[i + 1] - room, height);
  }
  pen.globalAlpha = 1;
  if (!shown || height < 13) return;
  pen.fillStyle = kind % 8 === 1 || kind % 8 === 4 ? view.colours["label-dark"] : view.colours.label;
  for (let i = 0; i < list.length; i += 3) {
    const begin = Math.max(list[i], LEFT), letters = Math.floor((list[i] + list[i + 1] - begin - 8) / LETTER);
    if (letters >= 3) pen.fillText(short(step.graph.names[step.op[list[i + 2]]], letters), begin + 4, y + height / 2 + 4);
  }
}

// A strip under what is searched for, which is seen however narrow the ops are.
function drawMarks(pen, lane, marks) {
  pen.fillStyle = view.colours.found;
  let end = -1;
  for (let i = 0; i < marks.length; i += 2) {
    if (marks[i] + marks[i + 1] <= end) continue;
    pen.fillRect(marks[i], lane.y + lane.height, marks[i + 1], 2.5);
    end = marks[i] + marks[i + 1];
  }
}

// Draws arrows if they are few enough to be told apart; returns how many are in view and not drawn.
function drawArrows(pen, width) {
  arrows = [];
  if (!view.arrows) return 0;
  for (const step of view.steps) {
    const t = step.transfers;
    for (let k = 0; k < t.op.length; k++) {
      if (t.finish[k] < view.start || t.start[k] > view.end) continue;
      arrows.push({ step, transfer: k });
    }
  }
  const count = arrows.length;
  if (count > MOST_ARROWS) { arrows = []; return count; }
  const scale = scaleOf(width), laneOf = new Map(lanes.map(lane => [`${view.steps.indexOf(lane.step)} ${lane.device}`, lane]));
  for (const arrow of arrows) placeArrow(arrow, scale, laneOf);
  for (const arrow of arrows) drawArrow(pen, arrow);
  pen.globalAlpha = 1;
  return 0;
}

function placeArrow(arrow, scale, laneOf) {
  const t = arrow.step.transfers, k = arrow.transfer, number = view.steps.indexOf(arrow.step);
  const from = laneOf.get(`${number} ${t.source[k]}`), to = laneOf.get(`${number} ${t.target[k]}`), down = to.y > from.y;
  arrow.x0 = LEFT + (t.start[k] - view.start) * scale;
  arrow.x1 = LEFT + (t.finish[k] - view.start) * scale;
  arrow.y0 = down ? from.y + from.height : from.y;
  arrow.y1 = down ? to.y : to.y + to.height;
}

function drawArrow(pen, arrow) {
  const { step, transfer, x0, x1, y0, y1 } = arrow, from = step.spanOf[step.transfers.op[transfer]];
  const head = y1 > y0 ? -5 : 5, dim = (view.query !== "" || view.path) && from >= 0 && dimmed(step, from);
  pen.globalAlpha = dim ? 0.12 : arrows.length > 400 ? 0.4 : 0.75;
  pen.strokeStyle = pen.fillStyle = view.colours.text;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 2.6, y1 + head);
  pen.lineTo(x1 + 2.6, y1 + head);
  pen.fill();
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

function sayHint(left) {
  const told = left ? `${many(left, "transfer")} are in view; they are drawn from ${MOST_ARROWS.toLocaleString("en")} down, so zoom in. ` : "";
  byId("hint").textContent = `${told}Drag to move; Ctrl and the wheel zoom, and the wheel alone does once the timeline was clicked; a double click shows the whole step. Keys: arrows move, + and − zoom, 0 shows all, N and P go to the next and the previous op of a device, W to what it waited for. Where ops are narrower than a pixel, the height is the share of time that the device is busy.`;
}
painters.push(["timeline", paintTimeline]);
