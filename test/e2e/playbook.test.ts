// The main job, on real folders: a workflow with three branches, each of which walks the files of its own folder and
// writes a row per file. When a run takes longer than the pause between two, the next one walks the same folder, and
// every file gets two rows. With the node, every file gets one.

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import Redis from 'ioredis';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, redisCredential, setup, sharedN8n, unique } from './support/n8n';
import type { LiveFlow } from './support/n8n';

const n8n = sharedN8n();
const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });
const FOLDERS = ['reports', 'invoices', 'orders'];
const FILES = ['a.eml', 'b.eml', 'c.eml', 'd.eml'];
let root: string;

beforeAll(async () => {
  mkdirSync(setup.folder, { recursive: true });
  root = mkdtempSync(join(setup.folder, 'mail-'));
  await gate.open();
  await redis.connect();
});
afterAll(async () => {
  await gate.close();
  redis.disconnect();
  rmSync(root, { recursive: true, force: true });
});

/** Three folders with mails in them, and a table of rows for each. */
function mailbox(): string {
  const base = mkdtempSync(join(root, 'box-'));
  for (const folder of FOLDERS) {
    mkdirSync(join(base, folder));
    for (const file of FILES) writeFileSync(join(base, folder, file), `Subject: ${folder} ${file}\n`);
    writeFileSync(join(base, `${folder}.csv`), '');
  }
  return base;
}

function rows(base: string, folder: string): string[] {
  return readFileSync(join(base, `${folder}.csv`), 'utf8')
    .split('\n')
    .filter(Boolean)
    .sort();
}

const LIST_NEW_FILES = (base: string, folder: string) => `
const fs = require('fs');
const rows = fs.readFileSync(${JSON.stringify(join(base, `${folder}.csv`))}, 'utf8').split('\\n');
return fs.readdirSync(${JSON.stringify(join(base, folder))}).filter((file) => !rows.includes(file)).map((file) => ({ json: { file } }));`;

const WRITE_ROW = (base: string, folder: string) => `
const fs = require('fs');
const { file } = $('Loop ${folder}').first().json;
fs.readFileSync(${JSON.stringify(join(base, folder))} + '/' + file);
fs.appendFileSync(${JSON.stringify(join(base, `${folder}.csv`))}, file + '\\n');
return [{ json: { file } }];`;

/**
 * One branch per folder: trigger → (Acquire →) list the files without a row → loop: read one slowly, write its row
 * (→ Heartbeat) → (Release on the loop's *done* output only).
 */
async function ingest(base: string, paths: Record<string, string>, slug: string | undefined): Promise<LiveFlow> {
  const flow = new Flow(unique('Ingest'), await redisCredential(n8n));
  for (const folder of FOLDERS) {
    const hook = flow.webhook(paths[folder], `Every Hour ${folder}`);
    const list = flow.code(`List ${folder}`, LIST_NEW_FILES(base, folder));
    const loop = flow.loop(`Loop ${folder}`);
    const read = flow.visit(
      `Read ${folder}`,
      `=${gate.url}/${folder}?file={{ $json.file }}&execution={{ $execution.id }}`,
    );
    const row = flow.code(`Row ${folder}`, WRITE_ROW(base, folder));
    flow.link(list, 0, loop).link(loop, 1, read).link(read, 0, row);
    if (slug === undefined) {
      flow.link(hook, 0, list).link(row, 0, loop);
      continue;
    }
    const acquire = flow.lock(`Acquire ${folder}`, { operation: 'acquire', key: `${slug}:lock:${folder}`, ttl: 600 });
    const beat = flow.lock(`Heartbeat ${folder}`, { operation: 'heartbeat' });
    const release = flow.lock(`Release ${folder}`, { operation: 'release' });
    flow
      .link(hook, 0, acquire)
      .link(acquire, OUTPUT.acquired, list)
      .link(acquire, OUTPUT.busy, flow.noOp(`Someone Else ${folder}`));
    flow.link(row, 0, beat).link(beat, OUTPUT.alive, loop).link(loop, 0, release);
  }
  return await goLive(n8n, flow);
}

function hookPaths(): Record<string, string> {
  return Object.fromEntries(FOLDERS.map((folder) => [folder, unique(folder)]));
}

/** Lets everybody through who comes by, until told to stop. */
function openDoors(from: number): () => void {
  let next = from;
  const timer = setInterval(() => {
    while (next < gate.visits.length) gate.visits[next++].leave();
  }, 5);
  return () => clearInterval(timer);
}

test('without the node: two overlapping runs write every row twice', async () => {
  const base = mailbox();
  const paths = hookPaths();
  const live = await ingest(base, paths, undefined);

  // All six runs have listed their files and read the first one before anybody is let go: that is the overlap.
  for (const folder of FOLDERS) {
    await live.call(paths[folder]);
    await live.call(paths[folder]);
  }
  for (let i = 0; i < 6; i++) await gate.next();
  const close = openDoors(gate.visits.length - 6);
  try {
    await live.finished(6);
  } finally {
    close();
  }
  for (const folder of FOLDERS) expect(rows(base, folder)).toEqual(FILES.flatMap((file) => [file, file]));
});

test('with the node: every file has one row, the second run leaves at once, the third finds the lock free', async () => {
  const base = mailbox();
  const paths = hookPaths();
  const slug = unique('w4ingest');
  const live = await ingest(base, paths, slug);
  const already = gate.visits.length;

  for (const folder of FOLDERS) await live.call(paths[folder]);
  // The three branches are in at once, each under its own key.
  const first = [await nextAfter(already, 0), await nextAfter(already, 1), await nextAfter(already, 2)];
  expect(first.map((visit) => visit.room).sort()).toEqual([...FOLDERS].sort());
  for (const folder of FOLDERS) await live.call(paths[folder]);
  await live.ended(3);
  expect(await redis.exists(...FOLDERS.map((folder) => `${slug}:lock:${folder}`))).toBe(3);
  const close = openDoors(already);
  try {
    await live.finished(6);
    expect(await redis.exists(...FOLDERS.map((folder) => `${slug}:lock:${folder}`))).toBe(0);
    for (const folder of FOLDERS) await live.call(paths[folder]);

    const runs = await live.finished(9);
    for (const folder of FOLDERS) {
      expect(rows(base, folder)).toEqual(FILES);
      const [winner, loser, later] = runs.filter((run) => run.times(`Every Hour ${folder}`) === 1);
      expect([winner, loser, later].map((run) => run.status)).toEqual(['success', 'success', 'success']);
      expect(winner.items(`Heartbeat ${folder}`, OUTPUT.alive)).toHaveLength(FILES.length);
      // The lock is told from the execution; nothing of it is in the items that the loop gives.
      expect(winner.times(`Release ${folder}`)).toBe(1);
      expect(winner.items(`Release ${folder}`, OUTPUT.notHeld)).toEqual([]);
      expect(winner.items(`Release ${folder}`)[0].lock).toMatchObject({
        released: true,
        key: `${slug}:lock:${folder}`,
      });
      expect(loser.items(`Someone Else ${folder}`)).toHaveLength(1);
      expect(loser.times(`List ${folder}`)).toBe(0);
      expect(loser.tookMs).toBeLessThan(2000);
      expect(later.items(`Acquire ${folder}`, OUTPUT.acquired)).toHaveLength(1);
      expect(later.items(`List ${folder}`)).toEqual([]);
    }
  } finally {
    close();
  }

  async function nextAfter(start: number, index: number) {
    // Visits of the test before do not count.
    for (;;) {
      const visit = await gate.next();
      if (gate.visits.indexOf(visit) >= start + index) return visit;
    }
  }
});
