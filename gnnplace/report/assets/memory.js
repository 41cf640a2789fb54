// Bytes alive on each device over the step, on the timeline's time axis, with the device's limit.
const CURVE = 44, BETWEEN = 10;

function paintMemory() {
  const box = byId("memorybox"), steps = view.steps.filter(step => step.memory.length);
  box.hidden = !steps.length;
  if (!steps.length) return;
  const devices = steps[0].devices, most = Math.max(...steps.flatMap(step => step.memory.map(peak)), 1);
  const [pen, width] = fitted(byId("memory"), devices.length * (CURVE + BETWEEN) + 4);
  devices.forEach((name, device) => drawDevice(pen, width, { steps, device, most, y: 2 + device * (CURVE + BETWEEN) }));
}

const peak = ([, held]) => held.reduce((most, value) => Math.max(most, value), 0);

function drawDevice(pen, width, { steps, device, most, y }) {
  const limit = steps[0].graph.limits[device], top = 1.12 * most, level = value => y + CURVE * (1 - Math.min(value / top, 1));
  pen.fillStyle = view.colours.back;
  pen.fillRect(LEFT, y, width - LEFT - RIGHT, CURVE);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, y - 1, width - LEFT - RIGHT, CURVE + 2);
  pen.clip();
  steps.forEach((step, number) => drawCurve(pen, width, { curve: step.memory[device], level, floor: y + CURVE, number, step }));
  if (limit <= top) drawLimit(pen, width, level(limit));
  pen.restore();
  pen.fillStyle = view.colours.text;
  pen.fillText(short(steps[0].devices[device], 13), 2, y + 14);
  pen.fillStyle = view.colours.soft;
  pen.fillText(short(bytes(peak(steps[0].memory[device])), 13), 2, y + 29);
}

// A step's curve: the highest of each pixel column, filled for the first step, dashed for the second.
function drawCurve(pen, width, { curve: [times, held], level, floor, number, step }) {
  const scale = scaleOf(width), first = Math.max(0, lastBefore(times, view.start));
  const x = instant => LEFT + (Math.min(instant, step.step_time) - view.start) * scale;
  pen.beginPath();
  pen.moveTo(x(times[first]), level(held[first]));
  let column = -1e9, high = 0, value = held[first];
  for (let k = first; k < times.length && times[k] <= view.end; k++) {
    const at = x(times[k]);
    if (at - column < 0.7) { if (held[k] > high) { high = held[k]; pen.lineTo(at, level(high)); } value = held[k]; continue; }
    pen.lineTo(at, level(value));
    pen.lineTo(at, level(held[k]));
    column = at;
    high = value = held[k];
  }
  pen.lineTo(x(step.step_time), level(value));
  pen.lineWidth = 1.5;
  pen.strokeStyle = kindColour(number ? 7 : 0);
  pen.setLineDash(number ? [4, 3] : []);
  pen.stroke();
  pen.setLineDash([]);
  if (number) return;
  pen.lineTo(x(step.step_time), floor);
  pen.lineTo(x(times[first]), floor);
  pen.globalAlpha = 0.18;
  pen.fillStyle = kindColour(0);
  pen.fill();
  pen.globalAlpha = 1;
}

function drawLimit(pen, width, y) {
  pen.strokeStyle = view.colours.found;
  pen.lineWidth = 1.5;
  pen.setLineDash([7, 4]);
  pen.beginPath();
  pen.moveTo(LEFT, y);
  pen.lineTo(width, y);
  pen.stroke();
  pen.setLineDash([]);
}

function lastBefore(times, instant) {
  let low = 0, high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= instant) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function memoryTold() {
  const steps = view.steps.filter(step => step.memory.length);
  const lines = steps.length ? steps[0].devices.map((name, device) => {
    const limit = steps[0].graph.limits[device], most = steps.map(step => bytes(peak(step.memory[device]))).join(", then ");
    return limit < 1e29 ? `${name}: ${most} of ${bytes(limit)} at the peak` : `${name}: ${most} at the peak`;
  }) : [];
  byId("memorytold").textContent = lines.length ? `${lines.join("; ")}. A dashed line across is the device's limit, where it is in sight.` : "";
}
painters.push(["memory", paintMemory]);
