// Bytes alive on each device over the step, on the timeline's time axis, with the device's limit.
const CURVE = 44, BETWEEN = 10;

function paintMemory() {
  const box = byId("memorybox"), steps = view.steps.filter(step => step.memory.length);
  box.hidden = !steps.length;
  if (!steps.length) return;
  const devices = steps[0].devices, most = Math.max(...steps.flatMap(step => step.peaks), 1);
  const [pen, width] = fitted(byId("memory"), devices.length * (CURVE + BETWEEN) + 4);
  devices.forEach((name, device) => drawDevice(pen, width, { steps, device, most, y: 2 + device * (CURVE + BETWEEN) }));
}

function drawDevice(pen, width, { steps, device, most, y }) {
  const limit = steps[0].graph.limits[device], top = 1.12 * most, place = lying(width), height = Math.round(CURVE * place.dense);
  const found = strip(place.width, height, pixel(view.colours.back)), level = value => Math.round((height - 1) * (1 - Math.min(value / top, 1)));
  steps.forEach((step, number) => drawCurve(found, { step, number, level, curve: step.memory[device], line: Math.round(1.5 * place.dense) }));
  if (limit <= top) drawLimit(found, level(limit), place.dense);
  pen.putImageData(found.image, place.left, Math.round(y * place.dense));
  pen.fillStyle = view.colours.text;
  pen.fillText(short(steps[0].devices[device], 13), 2, y + 14);
  pen.fillStyle = view.colours.soft;
  pen.fillText(short(bytes(steps[0].peaks[device]), 13), 2, y + 29);
}

// A step's curve, from the least to the most of each pixel column: filled below for the first step,
// dashed for the second.
function drawCurve(found, { step, number, level, curve: [times, held], line }) {
  const own = kindColour(number ? 7 : 0), colour = pixel(own), pale = pixel(own, view.colours.back, 0.18);
  const size = (view.end - view.start) / found.width;
  let k = Math.max(0, lastBefore(times, view.start)), before = held[k];
  for (let x = 0; x < found.width; x++) {
    const begin = view.start + x * size;
    if (begin > step.step_time || begin + size < 0) continue;
    let low = before, high = before;
    for (; k < times.length && times[k] < begin + size; k++) {
      before = held[k];
      low = Math.min(low, before);
      high = Math.max(high, before);
    }
    const from = level(high), to = Math.min(found.height, Math.max(level(low), from) + line);
    if (!number) fillColumn(found, x, from, found.height, pale);
    if (!number || x % (6 * line) < 4 * line) fillColumn(found, x, from, to, colour);
  }
}

function drawLimit(found, y, dense) {
  const colour = pixel(view.colours.found), dash = Math.round(7 * dense);
  for (let x = 0; x < found.width; x++) if (x % (2 * dash) < dash) fillColumn(found, x, y, Math.min(found.height, y + Math.ceil(1.5 * dense)), colour);
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
    const limit = steps[0].graph.limits[device], most = steps.map(step => bytes(step.peaks[device])).join(", then ");
    return limit < 1e29 ? `${name}: ${most} of ${bytes(limit)} at the peak` : `${name}: ${most} at the peak`;
  }) : [];
  const whose = steps.length < view.steps.length && lines.length ? `This is ${steps[0].label}. ` : "";
  byId("memorytold").textContent = lines.length ? `${whose}${lines.join("; ")}. A dashed line across is the device's limit, where it is in sight.${steps.length > 1 ? ` The dashed curve is ${steps[1].label}.` : ""}` : "";
}
painters.push(["memory", paintMemory]);
