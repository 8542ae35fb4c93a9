// Writes n8n workflows in a few readable lines. Only nodes that every plain n8n has, and ours.

import { randomUUID } from 'node:crypto';
import type { CredentialReference } from '../../../scripts/lib/n8n-api';

/** Output positions of the Redis Lock node, which are part of its contract. */
export const OUTPUT = {
  acquired: 0,
  busy: 1,
  timedOut: 2,
  doneBefore: 3,
  alive: 0,
  lost: 1,
  released: 0,
  notHeld: 1,
  stolen: 0,
  notStolen: 1,
} as const;

interface FlowNode {
  id: string;
  name: string;
  type: string;
  typeVersion: number;
  position: [number, number];
  parameters: Record<string, unknown>;
  [setting: string]: unknown;
}

export class Flow {
  readonly nodes: FlowNode[] = [];

  readonly connections: Record<string, { main: Array<Array<{ node: string; type: 'main'; index: number }>> }> = {};

  /** Of the workflow: `executionTimeout` in seconds, `errorWorkflow`. */
  readonly settings: Record<string, unknown> = { executionOrder: 'v1' };

  constructor(
    readonly name: string,
    private readonly redis: CredentialReference,
  ) {}

  /** A node of any type. Answers its name, by which nodes are linked. */
  add(
    name: string,
    type: string,
    typeVersion: number,
    parameters: Record<string, unknown>,
    settings: Record<string, unknown> = {},
  ): string {
    const position: [number, number] = [220 * this.nodes.length, 0];
    this.nodes.push({ id: randomUUID(), name, type, typeVersion, position, parameters, ...settings });
    return name;
  }

  /** Answers at once, so that the caller learns nothing from it but that the run has started. */
  webhook(path: string, name = 'Webhook'): string {
    return this.add(
      name,
      'n8n-nodes-base.webhook',
      2,
      { httpMethod: 'POST', path, responseMode: 'onReceived', options: {} },
      { webhookId: randomUUID() },
    );
  }

  /** Answers with what the last node of the run gives. */
  answeringWebhook(path: string, name = 'Webhook'): string {
    return this.add(
      name,
      'n8n-nodes-base.webhook',
      2,
      { httpMethod: 'POST', path, responseMode: 'lastNode', responseData: 'allEntries', options: {} },
      { webhookId: randomUUID() },
    );
  }

  lock(
    name: string,
    parameters: { operation: string; [parameter: string]: unknown },
    settings: Record<string, unknown> = {},
  ): string {
    return this.add(name, 'n8n-nodes-redis-lock.redisLock', 1, parameters, {
      credentials: { redis: this.redis },
      ...settings,
    });
  }

  /** Calls a URL and so waits, holding whatever the run holds, until that URL answers. Replaces `$json`. */
  visit(name: string, url: string): string {
    return this.add(name, 'n8n-nodes-base.httpRequest', 4.2, { method: 'GET', url, options: {} });
  }

  code(name: string, jsCode: string): string {
    return this.add(name, 'n8n-nodes-base.code', 2, { mode: 'runOnceForAllItems', language: 'javaScript', jsCode });
  }

  /** Where a workflow begins that others call. */
  calledByOthers(name = 'When Called'): string {
    return this.add(name, 'n8n-nodes-base.executeWorkflowTrigger', 1.1, { inputSource: 'passthrough' });
  }

  /** Runs another workflow with the items and goes on with what it gives. */
  subWorkflow(name: string, id: string): string {
    const workflowId = { __rl: true, mode: 'id', value: id };
    return this.add(name, 'n8n-nodes-base.executeWorkflow', 1.2, { workflowId, mode: 'once', options: {} });
  }

  noOp(name: string): string {
    return this.add(name, 'n8n-nodes-base.noOp', 1, {});
  }

  /** Output 0 is *done*, output 1 is *loop*. */
  loop(name: string): string {
    return this.add(name, 'n8n-nodes-base.splitInBatches', 3, { batchSize: 1, options: {} });
  }

  /** Links one output of a node to the next node. */
  link(from: string, output: number, to: string): this {
    const outputs = (this.connections[from] ??= { main: [] }).main;
    while (outputs.length <= output) outputs.push([]);
    outputs[output].push({ node: to, type: 'main', index: 0 });
    return this;
  }

  /** Links first outputs, one after the other. */
  chain(...names: string[]): this {
    for (let i = 1; i < names.length; i++) this.link(names[i - 1], 0, names[i]);
    return this;
  }
}
