// The n8n under test, as the tests see it: put a workflow in, call its webhook, read what every run did.

import { randomUUID } from 'node:crypto';
import { N8nApi } from '../../../scripts/lib/n8n-api';
import type { CredentialReference, Execution, ExecutionSummary } from '../../../scripts/lib/n8n-api';
import type { N8nInstall } from '../../../scripts/lib/n8n-server';
import { until } from '../../../scripts/lib/wait';
import type { Flow } from './flow';

// A test here starts workflows, waits for locks to expire, and sometimes for n8n to start.
jest.setTimeout(240_000);

interface E2eSetup {
  install: N8nInstall;
  tarball: string;
  folder: string;
  serverEnv: Record<string, string>;
  n8n: { url: string; cookie: string };
  redis: { host: string; port: number };
}

/** What the global set-up has started. */
export const setup = JSON.parse(process.env.REDIS_LOCK_E2E ?? '{}') as E2eSetup;

/** The server that all tests share. */
export function sharedN8n(): N8nApi {
  const api = new N8nApi(setup.n8n.url);
  api.cookie = setup.n8n.cookie;
  return api;
}

/** A name that no other test uses: for keys, webhook paths, rooms. */
export function unique(what: string): string {
  return `${what}-${randomUUID().slice(0, 8)}`;
}

/** n8n's own Redis credential; without `data` it points to the Redis that all tests share. */
export async function redisCredential(api: N8nApi, data: Record<string, unknown> = {}): Promise<CredentialReference> {
  return await api.createCredential({
    name: unique('Redis'),
    type: 'redis',
    data: { ...setup.redis, user: '', password: '', database: 0, ssl: false, ...data },
  });
}

type Item = Record<string, unknown> & { lock?: Record<string, unknown> };

/** One finished run of a workflow. */
export class Run {
  constructor(readonly execution: Execution) {}

  get id(): string {
    return this.execution.id;
  }

  get status(): string {
    return this.execution.status;
  }

  /** How long the whole execution took, in ms, as n8n recorded it. */
  get tookMs(): number {
    return Date.parse(this.execution.stoppedAt ?? '') - Date.parse(this.execution.startedAt);
  }

  /** The error that ended the run. */
  get error(): { message: string; description?: string } | undefined {
    return this.execution.data.resultData.error;
  }

  /** How many times a node ran. */
  times(node: string): number {
    return this.execution.data.resultData.runData[node]?.length ?? 0;
  }

  /** How long a node took, in ms, over all its runs. */
  nodeMs(node: string): number {
    const runs = this.execution.data.resultData.runData[node] ?? [];
    return runs.reduce((sum, run) => sum + run.executionTime, 0);
  }

  /** The items that a node put on one output, over all its runs. */
  items(node: string, output = 0): Item[] {
    const runs = this.execution.data.resultData.runData[node] ?? [];
    return runs.flatMap((run) => (run.data?.main[output] ?? []).map((item) => item.json as Item));
  }

  /** The lock field of the only item on that output. */
  lock(node: string, output = 0): Record<string, unknown> {
    const items = this.items(node, output);
    if (items.length !== 1) {
      const error = this.error ? `, error: ${this.error.message} ${this.error.description ?? ''}` : '';
      const seen = `${items.length} items on output ${output}, not 1: ${JSON.stringify(items)}`;
      throw new Error(`${node} has ${seen} (run ${this.id} is ${this.status}${error})`);
    }
    return items[0].lock ?? {};
  }
}

function hasEnded(one: ExecutionSummary): boolean {
  return Boolean(one.stoppedAt) && !['new', 'running', 'waiting'].includes(one.status);
}

/** A workflow that is live in n8n. */
export class LiveFlow {
  constructor(
    private readonly api: N8nApi,
    readonly id: string,
  ) {}

  /** Calls a webhook of it. Answers the response's status and body. */
  async call(path: string, body: unknown = {}): Promise<{ status: number; body: unknown }> {
    const response = await fetch(`${this.api.url}/webhook/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    return { status: response.status, body: text.startsWith('{') || text.startsWith('[') ? JSON.parse(text) : text };
  }

  /** Ids of its executions that have not ended, oldest first. */
  async runningIds(): Promise<string[]> {
    const all = await this.api.executions(this.id);
    return all
      .filter((one) => !hasEnded(one))
      .map((one) => one.id)
      .sort((a, b) => Number(a) - Number(b));
  }

  /** Waits until at least `count` executions have ended, whatever the others do. */
  async ended(count: number, timeoutMs = 60_000): Promise<void> {
    await until(
      `${count} ended executions`,
      async () => (await this.api.executions(this.id)).filter(hasEnded).length >= count,
      {
        timeoutMs,
        everyMs: 100,
      },
    );
  }

  /** Waits until exactly `count` executions have ended and none runs; gives them oldest first. */
  async finished(count: number, timeoutMs = 60_000): Promise<Run[]> {
    const summaries = await until(
      `${count} finished executions`,
      async () => {
        const all = await this.api.executions(this.id);
        return all.length >= count && all.every(hasEnded) ? all : undefined;
      },
      { timeoutMs, everyMs: 200 },
    );
    expect(summaries).toHaveLength(count);
    const ids = summaries.map((one) => one.id).sort((a, b) => Number(a) - Number(b));
    return await Promise.all(ids.map(async (id) => new Run(await this.api.execution(id))));
  }

  /** Stops a running execution as the editor's Stop button does. */
  async stop(executionId: string): Promise<void> {
    await this.api.stopExecution(executionId);
  }

  /** Takes it off the air. */
  async end(): Promise<void> {
    await this.api.deactivate(this.id);
  }
}

/** Puts a workflow into n8n and makes it live. */
export async function goLive(api: N8nApi, flow: Flow): Promise<LiveFlow> {
  const id = await api.createWorkflow(flow);
  await api.activate(id);
  return new LiveFlow(api, id);
}

/** A workflow that is called, by others or for an error: n8n 2 runs published ones only; n8n 1 has nothing to activate here. */
export async function makeCallable(api: N8nApi, flow: Flow): Promise<LiveFlow> {
  const id = await api.createWorkflow(flow);
  if (!setup.install.version.startsWith('1.')) await api.activate(id);
  return new LiveFlow(api, id);
}
