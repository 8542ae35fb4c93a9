/**
 * Runs every scenario over the adapters, several rounds, the order of adapters reversed in every second round, and
 * writes results/<time>.json and .md. See README.md.
 */
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { figuresTable } from './lib/figures.mjs';
import { handoffFloor } from './lib/notify-floor.mjs';
import { reset, startServer } from './lib/server.mjs';
import { spread } from './lib/stats.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const { values: options } = parseArgs({
  options: {
    rounds: { type: 'string', default: '3' },
    all: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    adapter: { type: 'string', multiple: true, default: [] },
    only: { type: 'string', multiple: true, default: [] },
    scenario: { type: 'string', multiple: true, default: [] },
    out: { type: 'string', default: join(HERE, 'results') },
  },
});
const rounds = options.quick ? 1 : Number(options.rounds);
if (!Number.isInteger(rounds) || rounds < 1) throw new Error('--rounds is a whole number from 1');

/** Left out unless asked for: they take long and tell little that the others do not. */
const LEFT_OUT = ['n8n-chain-5s', 'redlock-universal', 'sesamecare-redlock'];

async function loadAdapters() {
  const own = readdirSync(join(HERE, 'adapters'))
    .filter((file) => file.endsWith('.mjs'))
    .map((file) => join(HERE, 'adapters', file));
  const list = [];
  for (const file of [...own, ...options.adapter.map((path) => resolve(path))]) {
    const module = pathToFileURL(file).href;
    const { default: adapter } = await import(module);
    list.push({ name: adapter.name, traits: adapter.traits ?? {}, module });
  }
  const unknown = options.only.find((name) => !list.some((adapter) => adapter.name === name));
  if (unknown)
    throw new Error(`No adapter is called ${unknown}. There are: ${list.map(({ name }) => name).join(', ')}`);
  return list.filter(({ name }) =>
    options.only.length === 0 ? options.all || !LEFT_OUT.includes(name) : options.only.includes(name),
  );
}

async function loadScenarios() {
  const all = ['uncontended', 'handoff', 'crash', 'parked', 'timeouts'];
  const unknown = options.scenario.find((name) => !all.includes(name));
  if (unknown) throw new Error(`No scenario is called ${unknown}. There are: ${all.join(', ')}`);
  const names = all.filter((name) => options.scenario.length === 0 || options.scenario.includes(name));
  return Promise.all(names.map(async (name) => ({ name, ...(await import(`./scenarios/${name}.mjs`)) })));
}

function label(variant) {
  return Object.entries(variant)
    .map(([k, v]) => `${k}=${v}`)
    .join(' ');
}

function table(rows) {
  const fields = [...new Set(rows.flatMap((row) => Object.keys(row.figures)))].filter((field) => field !== 'notes');
  const lines = [`| adapter | ${fields.join(' | ')} | notes |`, `|---|${fields.map(() => '---:').join('|')}|---|`];
  for (const { adapter, figures, notes } of rows)
    lines.push(`| ${adapter} | ${fields.map((field) => spread(figures[field] ?? [])).join(' | ')} | ${notes} |`);
  return lines.join('\n');
}

const adapters = await loadAdapters();
const scenarios = await loadScenarios();
const server = await startServer();
const packageOf = (file) => JSON.parse(readFileSync(join(HERE, file), 'utf8'));
const report = {
  started: new Date().toISOString(),
  node: process.version,
  redis: server.version,
  cpu: `${cpus().length} x ${cpus()[0].model}`,
  versions: { ours: packageOf('../package.json').version, ...packageOf('package.json').dependencies },
  adapters: adapters.map(({ name, traits }) => ({ name, traits })),
  rounds,
  load: [],
  loadAfter: [],
  floor: [],
  results: {},
};

mkdirSync(options.out, { recursive: true });
const stem = join(options.out, report.started.replace(/[:.]/g, '-'));
for (let round = 0; round < rounds; round += 1) {
  report.floor.push(await handoffFloor(server.url));
  report.load.push(loadavg()[0]);
  for (const scenario of scenarios) {
    for (const variant of scenario.variants(options)) {
      const order = round % 2 ? [...adapters].reverse() : adapters;
      for (const adapter of order) {
        if (!scenario.applies(adapter, variant)) continue;
        if (round > 0 && adapter.traits.slowPath && scenario.name !== 'uncontended') continue;
        await reset(server.control);
        const slot = ((report.results[`${scenario.title} | ${label(variant)}`] ??= {})[adapter.name] ??= []);
        const began = Date.now();
        try {
          slot.push(await scenario.run({ adapter, server, variant, scale: options.quick ? 0.2 : 1 }));
        } catch (error) {
          slot.push({ notes: `failed: ${String(error.message).split('\n')[0]}` });
        }
        console.error(`round ${round + 1} ${scenario.name} ${label(variant)} ${adapter.name} ${Date.now() - began} ms`);
      }
    }
  }
  report.loadAfter.push(loadavg()[0]);
  writeFileSync(`${stem}.json`, JSON.stringify(report, null, 1));
  writeFileSync(`${stem}.md`, markdown());
}
await server.stop();
console.log(markdown());
console.log(`Written to ${stem}.json and .md`);
process.exit(0);

function markdown() {
  const done = report.floor.length;
  const parts = [
    `Node ${report.node}, Redis ${report.redis}, ${report.cpu}, ${done} round(s); each figure is median [min..max] over rounds.`,
    `Load average at the start of each round: ${loads(report.load)}; at its end, this benchmark included: ${loads(report.loadAfter)}.`,
    `## Figures\n\n${figuresTable(report)}`,
    `## Physical floor\n\n${Object.keys(report.floor[0])
      .map(
        (field) =>
          `- ${field}: ${spread(
            report.floor.map((f) => f[field]),
            3,
          )}`,
      )
      .join('\n')}`,
  ];
  for (const [heading, byAdapter] of Object.entries(report.results))
    parts.push(`## ${heading}\n\n${table(rowsOf(byAdapter))}`);
  return `${parts.join('\n\n')}\n`;
}

function loads(values) {
  return values.map((value) => value.toFixed(2)).join(', ');
}

function rowsOf(byAdapter) {
  return adapters
    .filter(({ name }) => byAdapter[name])
    .map(({ name }) => {
      const figures = {};
      for (const sample of byAdapter[name])
        for (const [field, value] of Object.entries(sample)) if (field !== 'notes') (figures[field] ??= []).push(value);
      return {
        adapter: name,
        figures,
        notes: [...new Set(byAdapter[name].map((s) => s.notes).filter(Boolean))].join('; '),
      };
    });
}
